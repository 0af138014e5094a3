"""Measured configurations of kernels: the file that keeps them, and the choice that a compilation makes among them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from tkc.kernels.requests import KernelRequest
from tkc.kernels.spec import Choice, KernelSpec
from tkc.kernels.target import Target

FILE = "kernels.json"
_FORMAT = 1
_MOST_BYTES = 256 << 20  # the file that comes with tkc has 0.3 million
# Kernels further apart than this tell nothing of each other: three doublings of sizes in sum, or as many other options.
_FARTHEST = 3.0
_MINOR = 0.125  # the distance of an option that hardly matters: like kernels come first, but are not all that counts
_ALIKE = {"float16", "bfloat16"}  # of which that is true


@dataclass(frozen=True)
class KernelRecord:
    """The fastest configuration of one kernel at one set of run-time sizes, and the median time it took there.

    ``kernel``, ``parameters``, ``configuration`` and ``target`` are a :class:`~tkc.kernels.KernelRequest` as JSON.
    """

    kernel: str
    parameters: Mapping[str, Any]
    configuration: Mapping[str, Any]
    target: str
    sizes: Mapping[str, int]
    milliseconds: float
    device: str
    versions: Mapping[str, str]
    time: str

    @property
    def request(self) -> KernelRequest:
        """The kernel that was measured; :class:`ValueError` where this version has no such parameters."""
        return KernelRequest.from_json(dataclasses.asdict(self))

    @property
    def measured(self) -> tuple[Any, ...]:
        """What two records of the same measurement have in common: all but the result and its circumstances.

        Parameters that a kernel had none of when it was recorded have their defaults.
        """
        try:
            parameters = self.request.to_json()["parameters"]
        except (KeyError, ValueError):
            parameters = self.parameters
        return (self.kernel, json.dumps([parameters, self.sizes], sort_keys=True), self.target, self.device)


@dataclass(frozen=True)
class _File:
    format: int
    records: tuple[KernelRecord, ...]


def read_records(folder: Path) -> tuple[KernelRecord, ...]:
    """The records in one target's database folder; none where it has no file of them.

    Raises :class:`ValueError` for a file that is no such, or of a newer format.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large for kernel records ({path.stat().st_size >> 20} MiB); delete it")
    try:
        content = TypeAdapter(_File).validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no kernel records; delete it, or tune the kernels again") from error
    if content.format > _FORMAT:
        raise ValueError(f"{path} has the format {content.format}, and this version reads up to {_FORMAT}; update tkc")
    return content.records


def write_records(folder: Path, records: Iterable[KernelRecord]) -> None:
    """Add ``records`` to a target's database folder, each in place of an older one of the same measurement.

    The file is replaced as a whole or not at all, by one process at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{FILE}.lock"):
        _write_merged(folder, records)


def _write_merged(folder: Path, records: Iterable[KernelRecord]) -> None:
    kept = {record.measured: record for record in (*read_records(folder), *records)}
    ordered = tuple(kept[key] for key in sorted(kept))
    new = folder / f"{FILE}.new"
    new.write_bytes(TypeAdapter(_File).dump_json(_File(_FORMAT, ordered), indent=1) + b"\n")
    new.replace(folder / FILE)


class RecordedChoices:
    """Chooses configurations by the nearest records; earlier ones come first where they are equally near.

    Records of ``device`` come before those of others.
    ``batch_invariant``: configurations of one kernel all reduce a row in the same order.
    """

    def __init__(
        self, records: Sequence[KernelRecord], device: str | None = None, batch_invariant: bool = False
    ) -> None:
        self._device = device
        self._batch_invariant = batch_invariant
        self._records: dict[tuple[str, Any], list[tuple[KernelRecord, Any]]] = {}
        for record in records:
            try:
                request = record.request
            except (KeyError, ValueError):
                continue  # of a kernel, or with parameters, that this version no longer has
            self._records.setdefault((record.kernel, request.parameters), []).append((record, request.configuration))

    def __call__(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> tuple[Choice[Any], ...]:
        """Where records tell nothing, the spec's default for all sizes.

        Nothing where all must reduce a row in one order, whatever the batch, and none does.
        """
        offered = self._offered(spec, parameters, target)
        return _choices(spec, self._nearest(spec, parameters, target, offered), offered) if offered else ()

    def other_devices(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> frozenset[str]:
        """The other devices whose records the kernel's configurations are chosen by."""
        offered = self._offered(spec, parameters, target)
        found = self._nearest(spec, parameters, target, offered) if offered else []
        return frozenset(record.device for record, _ in found) - {self._device}

    def _offered(self, spec: KernelSpec[Any, Any], parameters: Any, target: Target) -> Sequence[Any]:
        offered = spec.configurations(parameters, target)
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
        choices = _choices(spec, self._nearest(spec, parameters, target, usable), usable)
        settled = choices[0 if spec.settles_order == "smallest" else -1].configuration
        return tuple(c for c in usable if orders[c] == orders[settled])

    def configuration(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, sizes: Mapping[str, int]
    ) -> Any:
        """The configuration that a call with these run-time sizes gets."""
        choices = self(spec, parameters, target)
        size = sizes.get(spec.dispatch_size or "", 0)
        return next(choice.configuration for choice in choices if choice.most is None or size <= choice.most)

    def _nearest(
        self, spec: KernelSpec[Any, Any], parameters: Any, target: Target, offered: Sequence[Any]
    ) -> list[tuple[KernelRecord, Any]]:
        """The records of the kernel most alike; for sizes at which it chose what is not ``offered``, of the next one's.

        What suits a size of another kernel is nearer to the best than what suits another size of the same.
        """
        candidates = []
        for (kernel, measured), entries in self._records.items():
            there = [entry for entry in entries if entry[0].target == str(target)]
            usable = [entry for entry in there if entry[1] in offered]
            distance = _distance(parameters, measured, spec.minor_parameters) if kernel == spec.name else math.inf
            if usable and distance <= _FARTHEST:
                candidates.append((distance, there, self._of_this_device(usable)))
        candidates.sort(key=lambda candidate: candidate[0])
        if not candidates or spec.dispatch_size is None:
            return candidates[0][2] if candidates else []
        found: list[tuple[KernelRecord, Any]] = []
        missing = {record.sizes[spec.dispatch_size] for record, _ in candidates[0][1]}
        for _, _, usable in candidates:
            found += [entry for entry in usable if entry[0].sizes[spec.dispatch_size] in missing]
            missing -= {record.sizes[spec.dispatch_size] for record, _ in usable}
        return found

    def _of_this_device(self, entries: list[tuple[KernelRecord, Any]]) -> list[tuple[KernelRecord, Any]]:
        """Those that were measured on this device; all where none was."""
        return [entry for entry in entries if entry[0].device == self._device] or entries


def _choices(
    spec: KernelSpec[Any, Any], found: Sequence[tuple[KernelRecord, Any]], offered: Sequence[Any]
) -> tuple[Choice[Any], ...]:
    """What the records that were ``found`` make of it, the nearest first; the first that is ``offered`` if none was."""
    if not found:
        return (Choice(offered[0]),)
    if spec.dispatch_size is None:
        largest = max(found, key=lambda entry: math.prod(entry[0].sizes.values()))
        return (Choice(largest[1]),)
    return _by_size({record.sizes[spec.dispatch_size]: configuration for record, configuration in reversed(found)})


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
