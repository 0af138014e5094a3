"""Which configurations of a kernel calls choose among: by records, the nearest first, and by estimates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from tkc.kernels.estimates import ALL_SIZES, Between, Estimate, estimated_choices
from tkc.kernels.library_calls import without_libraries
from tkc.kernels.records import KernelRecord
from tkc.kernels.spec import Choice, KernelSpec
from tkc.kernels.target import Target

# Kernels further apart than this tell nothing of each other: three doublings of sizes in sum, or as many other options.
_FARTHEST = 3.0
_MINOR = 0.125  # the distance of an option that hardly matters: like kernels come first, but are not all that counts
_ALIKE = {"float16", "bfloat16"}  # of which that is true
_SAME = 0.3  # the distance below which a measurement is one of the very kernel: two options that hardly matter
# How many times smaller or larger than its own a size may be that a single measurement tells of.
_REACH = 8

Origin = Literal["own", "near", "estimate", "default"]
"""What a configuration was chosen by: a record of the very kernel and sizes, one of others, an estimate of its time, or
nothing."""


@dataclass(frozen=True)
class Chosen:
    """The configuration of a call, what it was chosen by, and the ``record``; ``None`` where it was none."""

    configuration: Any
    origin: Origin
    record: KernelRecord | None = None


class RecordedChoices:
    """Chooses configurations by the nearest records; earlier ones come first where they are equally near.

    Tables of records decide, the nearest kernel's. Single ones replace what the table says of sizes near their own, if
    their kernel is as near as the table's. Records of ``device`` come before those of others.
    ``batch_invariant``: configurations of one kernel all reduce a row in the same order. ``estimates``: of sizes that
    no record of the very kernel has, the estimated time decides, for kernels that have one. Without
    ``libraries``, all are kernels of ours.
    """

    def __init__(
        self,
        records: Sequence[KernelRecord],
        device: str | None = None,
        batch_invariant: bool = False,
        *,
        estimates: bool = False,
        libraries: bool = True,
    ) -> None:
        self._device = device
        self._batch_invariant = batch_invariant
        self._estimates = estimates
        self._libraries = libraries
        self._decisive: dict[Any, list[tuple[KernelRecord, Any]]] = {}
        self._decisions: dict[Any, tuple[Choice[Any], ...]] = {}
        self._records: dict[tuple[str, Any], list[tuple[KernelRecord, Any]]] = {}
        for record in records:
            try:
                request = record.request
            except (KeyError, ValueError):
                continue  # of a kernel, or with parameters, that this version no longer has
            self._records.setdefault((record.kernel, request.parameters), []).append((record, request.configuration))

    def __call__(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, between: Between = ALL_SIZES
    ) -> tuple[Choice[Any], ...]:
        """For calls whose size lies ``between`` two, both included. Where nothing tells, the spec's default.

        Nothing where all must reduce a row in one order, whatever the batch, and none does.
        """
        key = (spec.name, parameters, target, between)
        if key not in self._decisions:
            offered = self._offered(spec, parameters, target)
            found = self._found(spec, parameters, target)
            self._decisions[key] = self._choices(spec, parameters, target, found, offered, between) if offered else ()
        return self._decisions[key]

    def other_devices(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> frozenset[str]:
        """The other devices whose records the kernel's configurations are chosen by."""
        found = self._found(spec, parameters, target)
        return frozenset(record.device for record, _ in found) - {self._device}

    def _found(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> list[tuple[KernelRecord, Any]]:
        """The records that decide, whatever the sizes of calls."""
        key = (spec.name, parameters, target)
        if key not in self._decisive:
            offered = self._offered(spec, parameters, target)
            self._decisive[key] = self._nearest(spec, parameters, target, offered) if offered else []
        return self._decisive[key]

    def _offered(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> Sequence[Any]:
        offered = spec.configurations(parameters, target)
        if not self._libraries:
            offered = without_libraries(offered)
        return self._of_one_order(spec, parameters, target, offered) if self._batch_invariant else offered

    def _of_one_order(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Those of ``offered`` that reduce a row in the order of the one that would be chosen at the size that settles
        it; none where all depend on the batch."""
        orders = {c: spec.reduction_order(parameters, c, target) for c in offered}
        usable = [c for c in offered if orders[c] is not None]
        if not usable:
            return ()
        found = self._nearest(spec, parameters, target, usable)
        choices = self._choices(spec, parameters, target, found, usable)
        settled = choices[0 if spec.settles_order == "smallest" else -1].configuration
        return tuple(c for c in usable if orders[c] == orders[settled])

    def configuration(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, sizes: Mapping[str, int]
    ) -> Any:
        """The configuration that a call with these run-time sizes gets."""
        return _serving(self(spec, parameters, target), sizes.get(spec.dispatch_size or "", 0))

    def chosen(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, sizes: Mapping[str, int]) -> Chosen:
        """What :meth:`configuration` returns, and what it was chosen by."""
        return self.origin(spec, parameters, target, sizes, self.configuration(spec, parameters, target, sizes))

    def origin(
        self,
        spec: KernelSpec[Any, Any],
        parameters: Any,
        target: Target,
        sizes: Mapping[str, int],
        configuration: Any,
    ) -> Chosen:
        """What ``configuration`` was chosen by for a call with these run-time sizes.

        A record is a call's own if its parameters and all of its sizes are the call's.
        """
        found = self._found(spec, parameters, target)
        by_it = [record for record, chosen in found if chosen == configuration]
        for record in by_it:
            if record.request.parameters == parameters and all(
                sizes.get(name) == size for name, size in record.sizes.items()
            ):
                return Chosen(configuration, "own", record)
        if not by_it:
            estimate = self._estimate(spec, parameters, target, (configuration,))
            return Chosen(configuration, "default" if estimate is None else "estimate")
        return Chosen(configuration, "near", min(by_it, key=lambda record: _ratio(sizes, record.sizes)))

    def ranked(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """The configurations that records have of kernels alike, those first that were measured at the likest; then
        the others, those first that are estimated to be the fastest.

        Kernels and sizes count alike: a doubling of a parameter is as far as one of a size.
        """
        offered = self._offered(spec, parameters, target)
        found = []
        for (kernel, measured), entries in self._records.items():
            if kernel != spec.name or (distance := _distance(parameters, measured, spec.minor_parameters)) > _FARTHEST:
                continue
            found += [
                (distance + _ratio(sizes, record.sizes), configuration)
                for record, configuration in entries
                if record.target == str(target) and configuration in offered
            ]
        found.sort(key=lambda entry: entry[0])
        ranked = dict.fromkeys(configuration for _, configuration in found)
        if (estimate := self._estimate(spec, parameters, target, offered)) is not None:
            size = sizes[str(spec.dispatch_size)]
            ranked |= dict.fromkeys(sorted(offered, key=lambda configuration: estimate(configuration, size)))
        return tuple(ranked)

    def _choices(
        self,
        spec: KernelSpec[Any, Any],
        parameters: Any,
        target: Target,
        found: Sequence[tuple[KernelRecord, Any]],
        offered: Sequence[Any],
        between: Between = ALL_SIZES,
    ) -> tuple[Choice[Any], ...]:
        """What the records that were ``found``, the nearest first, and estimates make of it; the first that is
        ``offered`` if there is neither."""
        if spec.dispatch_size is None:
            return (Choice(_of_one_size(found, offered)),)
        singles = [entry for entry in found if entry[0].single]
        table = [entry for entry in found if not entry[0].single]
        best, single = (
            {record.sizes[spec.dispatch_size]: configuration for record, configuration in reversed(entries)}
            for entries in (table, singles)
        )
        choices = _by_size(best) if best else (Choice(offered[0]),)
        if (estimate := self._estimate(spec, parameters, target, offered)) is not None:
            own = {
                record.sizes[spec.dispatch_size]: configuration
                for record, configuration in reversed(table)
                if _distance(parameters, record.request.parameters, spec.minor_parameters) < _SAME
            }
            near = partial(_serving, choices) if best else lambda _: None
            choices = estimated_choices(offered, estimate, near, own, between)
        return _with_singles(choices, best, single)

    def _estimate(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any]
    ) -> Estimate | None:
        """What estimates the times of ``offered``, if that is wanted and can be done."""
        if not self._estimates or spec.dispatch_size is None:
            return None
        size = spec.dispatch_size

        def estimate(configuration: Any, at: int) -> float | None:
            return spec.estimated_microseconds(parameters, configuration, target, {size: at})

        return cast(Estimate, estimate) if estimate(offered[0], 1) is not None else None

    def _nearest(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any]
    ) -> list[tuple[KernelRecord, Any]]:
        """The records that decide, in the order in which they do: single ones near enough, then the nearest table's."""
        table, distance = self._nearest_table(spec, parameters, target, offered)
        singles = [
            (far, entry)
            for far, _, usable in self._alike(spec, parameters, target, offered, single=True)
            if far <= distance
            for entry in sorted(usable, key=lambda entry: entry[0].time, reverse=True)
        ]
        if not table:
            return [entry for far, entry in singles if far == singles[0][0]]
        return [*(entry for _, entry in singles), *table]

    def _nearest_table(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any]
    ) -> tuple[list[tuple[KernelRecord, Any]], float]:
        """The records of the kernel most alike, and how far it is; for sizes at which it chose what is not ``offered``,
        those of the next one.

        What suits a size of another kernel is nearer to the best than what suits another size of the same.
        """
        candidates = self._alike(spec, parameters, target, offered, single=False)
        if not candidates or spec.dispatch_size is None:
            return (candidates[0][2], candidates[0][0]) if candidates else ([], math.inf)
        found: list[tuple[KernelRecord, Any]] = []
        missing = {record.sizes[spec.dispatch_size] for record, _ in candidates[0][1]}
        for _, _, usable in candidates:
            found += [entry for entry in usable if entry[0].sizes[spec.dispatch_size] in missing]
            missing -= {record.sizes[spec.dispatch_size] for record, _ in usable}
        return found, candidates[0][0]

    def _alike(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any], *, single: bool
    ) -> list[tuple[float, list[tuple[KernelRecord, Any]], list[tuple[KernelRecord, Any]]]]:
        """How far each kernel alike is, its records, and those whose configurations are ``offered``; nearest first."""
        candidates = []
        for (kernel, measured), entries in self._records.items():
            there = [entry for entry in entries if entry[0].target == str(target) and entry[0].single == single]
            usable = [entry for entry in there if entry[1] in offered]
            distance = _distance(parameters, measured, spec.minor_parameters) if kernel == spec.name else math.inf
            if usable and distance <= _FARTHEST:
                candidates.append((distance, there, self._of_this_device(usable)))
        return sorted(candidates, key=lambda candidate: candidate[0])

    def _of_this_device(self, entries: list[tuple[KernelRecord, Any]]) -> list[tuple[KernelRecord, Any]]:
        """Those that were measured on this device; all where none was."""
        return [entry for entry in entries if entry[0].device == self._device] or entries


def _of_one_size(found: Sequence[tuple[KernelRecord, Any]], offered: Sequence[Any]) -> Any:
    """The configuration of a kernel that has one for all sizes: that of the first single record, or of the largest."""
    singles = [configuration for record, configuration in found if record.single]
    if singles or not found:
        return (*singles, offered[0])[0]
    return max(found, key=lambda entry: math.prod(entry[0].sizes.values()))[1]


def _with_singles(
    choices: tuple[Choice[Any], ...], measured: Iterable[int], singles: Mapping[int, Any]
) -> tuple[Choice[Any], ...]:
    """``choices``, of a table that ``measured`` these sizes, but around those of ``singles`` their configurations.

    They reach midway (by ratio) to the next size that was measured, and no farther than a factor of 8. What agrees with
    the table changes nothing.
    """
    if not singles:
        return choices
    sizes = sorted({*measured, *singles})
    changed: list[tuple[int, int, Any]] = []
    for at, size in enumerate(sizes):
        if size in singles and singles[size] != _serving(choices, size):
            below = math.isqrt(sizes[at - 1] * size) if at else 0
            above = math.isqrt(size * sizes[at + 1]) if at + 1 < len(sizes) else size * _REACH
            changed.append((max(below, size // _REACH - 1), min(above, size * _REACH), singles[size]))
    limits = {choice.most for choice in choices if choice.most is not None}
    limits |= {limit for below, above, _ in changed for limit in (below, above)}
    pieces: list[Choice[Any]] = []
    for most in (*sorted(limits - {0}), None):
        inside = (c for below, above, c in changed if most is not None and below < most <= above)
        configuration = next(inside, None) or _serving(choices, most)
        if pieces and pieces[-1].configuration == configuration:
            pieces.pop()
        pieces.append(Choice(configuration, most))
    return tuple(pieces)


def _serving(choices: Sequence[Choice[Any]], size: int | None) -> Any:
    """The configuration for a size; for ``None``, that of the largest."""
    return next(c.configuration for c in choices if c.most is None or (size is not None and size <= c.most))


def _ratio(sizes: Mapping[str, int], measured: Mapping[str, int]) -> float:
    """How unlike two sets of sizes are: doublings, in sum."""
    return sum(abs(math.log2(max(sizes[name], 1) / max(size, 1))) for name, size in measured.items() if name in sizes)


def _distance(left: Any, right: Any, minor: frozenset[str]) -> float:
    """How unlike two kernels are: doublings between their sizes, and one for each other option that differs.

    Options that are ``minor`` count an eighth of that; factors and addends, which are floating-point numbers, nothing.
    """
    return sum(
        _difference(getattr(left, field.name), getattr(right, field.name)) * (_MINOR if field.name in minor else 1.0)
        for field in dataclasses.fields(left)
    )


def _difference(a: Any, b: Any) -> float:
    if all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in (a, b)):
        return abs(math.log2(a / b))
    if a == b or all(isinstance(value, float) for value in (a, b)):
        return 0.0
    return _MINOR if {a, b} == _ALIKE else 1.0


def _by_size(best: Mapping[int, Any]) -> tuple[Choice[Any], ...]:
    """The choices for the best configuration at each measured size; limits lie midway (by ratio) between two sizes."""
    sizes = sorted(best)
    choices: list[Choice[Any]] = []
    for size, larger in zip(sizes, [*sizes[1:], None], strict=True):
        if larger is not None and best[larger] == best[size]:
            continue
        choices.append(Choice(best[size], None if larger is None else math.isqrt(size * larger)))
    return tuple(choices)
