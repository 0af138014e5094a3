"""The schedules found at single sizes, tried on the symbolic function at all of its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import tvm
from tvm import tirx
from tvm.s_tir.meta_schedule.arg_info import TensorInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace

from tkc.kernels.target import Target
from tkc.schedules.database import FAILED_SECONDS
from tkc.schedules.default_record import default_trace, is_default
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.sizes import retarget, with_known_tiles
from tkc.schedules.tuning.measurement import Argument, Measurer, Program, TensorArgument, arguments_of
from tkc.schedules.tuning.records import Records, seconds_of, succeeded
from tkc.schedules.tuning.tasks import Function

_Place = tuple[str, tuple[tuple[int, ...], ...]]
"""A schedule's trace as text, and the shapes that it was measured at."""


@dataclass(frozen=True)
class _Variant:
    """A schedule of the symbolic function: its trace, and what code is generated from."""

    trace: Trace
    func: tirx.PrimFunc


class SymbolicSizes:
    """Measures variants of symbolic functions and records them as records of the symbolic workload, whose ``args_info``
    are the shapes they were measured at. ``history`` tells what is known, and is not measured again, but for a default
    that failed: without it, a size has no yardstick, and a busy moment may have been all that was wrong.
    """

    def __init__(
        self,
        target: Target,
        tvm_target: tvm.target.Target,
        measurer: Measurer,
        records: Records,
        history: Callable[[tvm.IRModule], Sequence[TuningRecord]],
    ) -> None:
        self._target = target
        self._tvm_target = tvm_target
        self._measurer = measurer
        self._records = records
        self._history = history
        self._times: dict[str, dict[_Place, float]] = {}
        self._fitting: dict[tuple[str, str], _Variant | None] = {}

    def missing(self, function: Function, traces: Iterable[Trace]) -> int:
        """How many programs there are to measure for the schedules ``traces``, of which some may not fit."""
        return sum(len(function.sizes) for trace in traces if (function.name, str(trace)) not in self._fitting)

    def measure(self, wanted: Iterable[tuple[Function, Sequence[Trace]]], until: float | None = None) -> Iterator[None]:
        """For each function, every one of its schedules that fits it, and the default, at each of its sizes where it
        was not measured; yields after each measurement, of those that there are at ``until``.
        """
        missing = [
            (function, variant, arguments)
            for function, traces in wanted
            for variant in self._variants(function, traces)
            for arguments in (arguments_of(function.func, sizes) for sizes in function.sizes)
            if (str(variant.trace), _shapes(arguments)) not in self._known(function)
        ]
        programs = [Program(variant.func, arguments) for _, variant, arguments in missing]
        for index, result in self._measurer.measure(programs, until):
            function, variant, arguments = missing[index]
            self._commit(function, variant.trace, arguments, result.seconds, result.error)
            seconds = median(result.seconds) if result.seconds else FAILED_SECONDS
            self._known(function)[str(variant.trace), _shapes(arguments)] = seconds
            yield

    def best(self, function: Function) -> Iterator[tuple[str, float, float]]:
        """For each size, the task's key and the seconds of a call under the default rules and under the best schedule
        that was measured; nothing where the default was not.
        """
        times, default_text = self._known(function), str(default_trace(function.workload))
        for key, sizes in zip(function.task_keys, function.sizes, strict=True):
            shapes = _shapes(arguments_of(function.func, sizes))
            here = {trace: seconds for (trace, measured_at), seconds in times.items() if measured_at == shapes}
            default = here.get(default_text, FAILED_SECONDS)
            if default < FAILED_SECONDS:
                yield key, default, min(here.values())

    def _known(self, function: Function) -> dict[_Place, float]:
        if function.name not in self._times:
            self._times[function.name] = {
                _place(record): seconds_of(record) if succeeded(record) else FAILED_SECONDS
                for record in self._history(function.workload)
                if succeeded(record) or not is_default(record.trace)
            }
        return self._times[function.name]

    def _variants(self, function: Function, traces: Sequence[Trace]) -> list[_Variant]:
        """The default, and what ``traces`` make of ``function``, no schedule twice."""
        default = schedule_by_rules(function.func, self._target, self._tvm_target)
        variants = {"": _Variant(default_trace(function.workload), default.scheduled)}
        for trace in traces:
            if (place := (function.name, str(trace))) not in self._fitting:
                sch = retarget(trace, function.func, self._tvm_target)
                self._fitting[place] = (
                    None if sch is None else _Variant(sch.trace, with_known_tiles(sch.mod["main"], self._tvm_target))
                )
            if (variant := self._fitting[place]) is not None:
                variants.setdefault(str(variant.trace), variant)
        return list(variants.values())

    def _commit(
        self,
        function: Function,
        trace: Trace,
        arguments: Sequence[Argument],
        seconds: Sequence[float],
        error: str | None,
    ) -> None:
        info = [TensorInfo(each.dtype, each.shape) for each in arguments if isinstance(each, TensorArgument)]
        runs = list(seconds) or [FAILED_SECONDS]
        record = TuningRecord(trace, Workload(function.workload), runs, self._tvm_target, info)
        self._records.commit(record, error)


def _shapes(arguments: Sequence[Argument]) -> tuple[tuple[int, ...], ...]:
    return tuple(each.shape for each in arguments if isinstance(each, TensorArgument))


def _place(record: TuningRecord) -> _Place:
    return str(record.trace), tuple(tuple(map(int, info.shape)) for info in record.args_info)
