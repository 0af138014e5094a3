"""Measures the kernels that a model calls, at its sizes: those first by which it gains the most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tkc.builder import KernelBuilder
from tkc.called_cases import CalledCase
from tkc.errors import KernelBuildError
from tkc.kernels import SPECS, KernelRequest, KernelSpec, Target
from tkc.kernels.choices import Chosen, RecordedChoices
from tkc.kernels.library_calls import LibraryCall
from tkc.kernels.records import write_records
from tkc.kernels.spec import as_json
from tkc.measure.record import package_version
from tkc.schedules.tuning.background import Background, TimeIsUpError
from tkc.schedules.tuning.progress import KernelGain
from tkc.schedules.tuning.tasks import Skipped
from tkc.tuning.case_times import Times, case_times, faster
from tkc.tuning.kernels import VERSIONED, built_functions, kernel_record

# What may be gained, as a part of the time, where compilations go by the default, by a record of another kernel or
# size, and by one of its own that another version or device measured. Guesses, which order what is measured.
_HOPED = {"default": 0.3, "near": 0.1, "estimate": 0.1, "own": 0.03}
# Kernels that take less than this of the time of all gain nothing that anyone could measure.
_LEAST_SHARE = 0.005
# Configurations that are measured of every kernel before any others: what is chosen now, the default, calls of
# libraries, and those of the likest records.
_PROMISING = 6
_LEAST = 0.99  # of the present choice's time: by less, measurements differ, and what is chosen stays
_BATCH_SECONDS = 10.0  # that a GPU's kernels take to be built, before any were


@dataclass(frozen=True)
class _Group:
    """Cases of one kernel that calls do not tell apart, so that one configuration serves them all: the ``present`` one
    of each is the same.
    """

    cases: tuple[CalledCase, ...]
    present: tuple[Chosen, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others."""
        case = self.cases[0].case
        return (case.kernel, case.parameters, *sorted(case.sizes.items()))

    @property
    def spec(self) -> KernelSpec[Any, Any]:
        """The kernel's."""
        return SPECS[self.cases[0].case.kernel]

    @property
    def parameters(self) -> Any:
        """The kernel's."""
        return self.cases[0].case.parameters

    @property
    def configuration(self) -> Any:
        """The present one."""
        return self.present[0].configuration

    @property
    def hoped(self) -> float:
        """The seconds of a call of the model that may be gained."""
        return sum(each.total * _HOPED[chosen.origin] for each, chosen in zip(self.cases, self.present, strict=True))

    def request(self, configuration: Any, target: Target) -> KernelRequest:
        """The kernel in a configuration."""
        return KernelRequest(self.spec.name, self.parameters, configuration, target)


class _Building:
    """One builder for all kernels, which takes seconds to start. What the time does not suffice for is left behind in
    the background, and the builder with it, so that the next job finds it built.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._builder = KernelBuilder()
        self._left = threading.Event()

    def __enter__(self) -> _Building:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._left.is_set():
            self._close()

    def __call__(self, requests: Sequence[KernelRequest], until: float | None) -> dict[KernelRequest, Any]:
        """The functions of those that build. Raises :class:`TimeIsUpError`, and :class:`KernelBuildError` if none."""
        try:
            return self._background.run(partial(self._build, requests), until)
        except (TimeIsUpError, KeyboardInterrupt):
            self._left.set()
            raise

    def _build(self, requests: Sequence[KernelRequest]) -> dict[KernelRequest, Any]:
        try:
            return built_functions(requests, self._builder)
        finally:
            if self._left.is_set():
                self._close()

    def _close(self) -> None:
        self._builder.__exit__(None, None, None)


class KernelJob:
    """Measures ``called`` kernels on this machine, ``device_name``, for compilations that choose by ``choices``.

    Records go to ``folder``, each as soon as there is one. What compilations choose now is measured by turns with what
    may be faster, and stays unless that is so by 1 %. Kernels with a record of their own, by this version and on this
    device, are measured ``again`` if that is wanted. ``notify`` is told what is being done.
    """

    def __init__(
        self,
        called: Sequence[CalledCase],
        choices: RecordedChoices,
        target: Target,
        device_name: str,
        folder: Path,
        background: Background,
        notify: Callable[[str], None],
        *,
        again: bool = False,
    ) -> None:
        self._target = target
        self._choices = choices
        self._device_name = device_name
        self._folder = folder
        self._background = background
        self._notify = notify
        self._device = torch.device("cuda" if target.is_cuda else "cpu")
        self._gains: dict[tuple[Any, ...], list[KernelGain]] = {}
        self._functions: dict[KernelRequest, Any] = {}
        self._tried: dict[tuple[Any, ...], dict[Any, None]] = {}
        self._batch_seconds = _BATCH_SECONDS if target.is_cuda else 0.0
        self.skipped: list[Skipped] = []
        self._kernels = self._to_measure(called, again)

    @property
    def gains(self) -> tuple[KernelGain, ...]:
        """What was measured, and what records say of the rest; what takes longest first."""
        found = (gain for own in self._gains.values() for gain in own)
        return tuple(sorted(found, key=lambda gain: -gain.seconds))

    @property
    def order(self) -> list[tuple[str, Any]]:
        """The kernels that are to be measured, in this order."""
        return [(groups[0].spec.name, groups[0].parameters) for groups in self._kernels]

    def run(self, until: float | None, batch: int) -> str | None:
        """Measure until all is done, or ``until`` (of ``time.monotonic``); why some was not measured, if that is so.

        Every kernel in its promising configurations, then each in the others, which are left out without ``until``.
        ``batch`` kernels are built at a time.
        """
        if self._kernels:
            with _Building(self._background) as building:
                self._run(building, until, batch)
        self._functions.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        missing = sum(group.key not in self._tried for groups in self._kernels for group in groups)
        return f"{missing} sizes of kernels were not measured: their part of the time was over" if missing else None

    def _run(self, building: _Building, until: float | None, batch: int) -> None:
        for phase in (self._promising, self._others) if until is not None else (self._promising,):
            for groups in self._batches(phase, batch):
                if self._is_over(until, self._batch_seconds) or not self._build(building, groups, phase, until):
                    return
                for group in groups:
                    if self._is_over(until):
                        break
                    self._measure(group, phase(group), until)

    def _to_measure(self, called: Iterable[CalledCase], again: bool) -> list[list[_Group]]:
        """The kernels, each as the groups that the same libraries serve, in order of what may be gained."""
        grouped: dict[tuple[Any, ...], list[CalledCase]] = {}
        for each in called:
            size = each.case.sizes.get(SPECS[each.case.kernel].dispatch_size or "")
            grouped.setdefault((each.case.kernel, each.case.parameters, size), []).append(each)
        total = sum(each.total for cases in grouped.values() for each in cases)
        kernels: dict[tuple[Any, ...], list[_Group]] = {}
        for (kernel, parameters, _), cases in grouped.items():
            present = [
                self._choices.origin(SPECS[kernel], parameters, self._target, c.case.sizes, c.configuration)
                for c in cases
            ]
            group = _Group(tuple(cases), tuple(present))
            if self._is_worth_it(group, _LEAST_SHARE * total, again):
                kernels.setdefault((kernel, parameters), []).append(group)
        for groups in kernels.values():
            groups.sort(key=lambda group: -group.hoped)
        return sorted(kernels.values(), key=lambda groups: -sum(group.hoped for group in groups))

    def _is_worth_it(self, group: _Group, least: float, again: bool) -> bool:
        """Whether anything is to be gained; if not, that is noted."""
        if not again and all(map(self._is_current, group.present)):
            records = [chosen.record for chosen in group.present if chosen.record is not None]
            self._gains[group.key] = [
                _gain(called, record.milliseconds, record.milliseconds, group.configuration, 0)
                for called, record in zip(group.cases, records, strict=True)
            ]
            return False
        if len(group.spec.configurations(group.parameters, self._target)) < 2:
            return self._skip(group, "a kernel of one configuration")
        if sum(each.total for each in group.cases) < least:
            return self._skip(group, f"less than {_LEAST_SHARE:.1%} of the kernels' estimated time")
        return True

    def _is_current(self, chosen: Chosen) -> bool:
        """Whether a record of its own chose it, which this version measured on this device."""
        return (
            chosen.origin == "own"
            and chosen.record is not None
            and chosen.record.device == self._device_name
            and all(chosen.record.versions.get(name) == package_version(name) for name in VERSIONED)
        )

    def _skip(self, group: _Group, reason: str) -> bool:
        self.skipped.append(Skipped(_told(group), reason))
        return False

    def _promising(self, group: _Group) -> list[Any]:
        """The present choice, the default, libraries, and what records of kernels alike chose, the likest first."""
        if group.key in self._tried:
            return []
        offered = group.spec.configurations(group.parameters, self._target)
        ranked = self._choices.ranked(group.spec, group.parameters, self._target, group.cases[0].case.sizes)
        libraries = [each for each in offered if isinstance(each, LibraryCall)]
        return list(dict.fromkeys((group.configuration, offered[0], *libraries, *ranked, *offered)))[:_PROMISING]

    def _others(self, group: _Group) -> list[Any]:
        """What is not tried, beside the present choice and what is fastest so far."""
        tried = self._tried.get(group.key)
        offered = group.spec.configurations(group.parameters, self._target)
        untried = [each for each in offered if tried and each not in tried]
        if not tried or not untried:
            return []
        return list(dict.fromkeys((group.configuration, next(iter(tried)), *untried)))

    def _batches(self, phase: Callable[[_Group], list[Any]], batch: int) -> Iterator[list[_Group]]:
        """The groups of as many kernels at a time as keep the builder's processes busy."""
        found: list[_Group] = []
        count = 0
        for groups in self._kernels:
            wanted = {configuration for group in groups for configuration in phase(group)}
            found += groups if wanted else []
            count += len(wanted)
            if count >= batch:
                yield found
                found, count = [], 0
        if found:
            yield found

    def _build(
        self,
        building: _Building,
        groups: Sequence[_Group],
        phase: Callable[[_Group], list[Any]],
        until: float | None,
    ) -> bool:
        """Build what is not built yet; whether it was in time."""
        wanted = dict.fromkeys(group.request(each, self._target) for group in groups for each in phase(group))
        missing = [request for request in wanted if request not in self._functions]
        if not missing:
            return True
        names = ", ".join(dict.fromkeys(group.spec.name for group in groups))
        self._notify(f"building {len(missing)} configurations of {names}")
        begun = time.monotonic()
        try:
            self._functions |= building(missing, until)
        except TimeIsUpError:
            return False
        except KernelBuildError as error:
            self.skipped.append(Skipped(names, f"nothing could be built: {error}"))
        self._batch_seconds = time.monotonic() - begun
        return True

    def _measure(self, group: _Group, configurations: Sequence[Any], until: float | None) -> None:
        """Measure the group's cases, and record what is the fastest over all of them."""
        requests = {each: group.request(each, self._target) for each in configurations}
        functions = {each: self._functions[request] for each, request in requests.items() if request in self._functions}
        tried = self._tried.setdefault(group.key, {})
        if not functions:
            return
        self._notify(f"measuring {_told(group)}")
        present = group.configuration
        times: list[Times] = []
        try:
            for called in group.cases:
                over = partial(self._is_over, until)
                times.append(case_times(called.case, functions, present, self._device, over))
        except (RuntimeError, ValueError) as error:  # such as no room on the device
            self._skip(group, f"it could not be measured: {str(error).splitlines()[0]}")
            return
        if not all(present in own for own in times):
            self._skip(group, "the present configuration could not be built, or computes something else")
            return
        winner = faster(times, [each.weight for each in group.cases], present, _LEAST)
        self._tried[group.key] = {winner: None, **tried, **dict.fromkeys(functions)}
        gains, records = [], []
        for called, own in zip(group.cases, times, strict=True):
            before, after = median(own[present]), median(own[winner])
            gains.append(_gain(called, before, after, winner, len(self._tried[group.key])))
            records.append(kernel_record(called.case, self._target, after, winner, single=True))
        write_records(self._folder, records)
        self._gains[group.key] = gains

    def _is_over(self, until: float | None, needed: float = 0.0) -> bool:
        return until is not None and time.monotonic() + needed >= until


def _gain(called: CalledCase, before: float, after: float, configuration: Any, tried: int) -> KernelGain:
    """Of two times in milliseconds."""
    case = called.case
    return KernelGain(
        *(case.kernel, as_json(case.parameters), dict(case.sizes), called.weight),
        before=before / 1e3,
        after=after / 1e3,
        configuration=as_json(configuration),
        tried=tried,
    )


def _told(group: _Group) -> str:
    case = group.cases[0].case
    sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
    dimensions = {name: getattr(case.parameters, name, None) for name in ("n", "k", "channels")}
    shape = "".join(f" {name}={size}" for name, size in dimensions.items() if size is not None)
    return f"{case.kernel}{shape} [{sizes}]"
