"""The schedules found at single sizes, tried on the symbolic function at all of its sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class _Variant:
    """A schedule of the symbolic function: its trace, and what code is generated from."""

    trace: Trace
    func: tirx.PrimFunc


class SymbolicSizes:
    """Measures variants of symbolic functions and records them as records of the symbolic workload, whose ``args_info``
    are the shapes they were measured at.
    """

    def __init__(self, target: Target, tvm_target: tvm.target.Target, measurer: Measurer, records: Records) -> None:
        self._target = target
        self._tvm_target = tvm_target
        self._measurer = measurer
        self._records = records

    def measure(
        self,
        function: Function,
        finalists: Mapping[str, Sequence[tuple[float, Trace]]],
        known: Sequence[TuningRecord],
    ) -> Iterator[tuple[str, float, float]]:
        """Every schedule of ``finalists`` (by task) that fits ``function``, and the default, at each of its sizes.

        What is ``known`` is not measured again, but for a default that failed: without it, a size has no yardstick, and
        a busy moment may have been all that was wrong. Yields, for each size, the task's key and the seconds of a call
        under the default rules and under the best schedule; nothing where the default cannot be measured.
        """
        keys = function.task_keys
        variants = self._variants(function, [trace for key in keys for _, trace in finalists.get(key, ())])
        calls = [arguments_of(function.func, sizes) for sizes in function.sizes]
        times = {
            _place(record): seconds_of(record) if succeeded(record) else FAILED_SECONDS
            for record in known
            if succeeded(record) or not is_default(record.trace)
        }
        missing = [
            (variant, arguments)
            for variant in variants
            for arguments in calls
            if (str(variant.trace), _shapes(arguments)) not in times
        ]
        for index, result in self._measurer.measure([Program(variant.func, call) for variant, call in missing]):
            variant, arguments = missing[index]
            self._commit(function, variant.trace, arguments, result.seconds, result.error)
            times[str(variant.trace), _shapes(arguments)] = median(result.seconds) if result.seconds else FAILED_SECONDS
        for key, arguments in zip(keys, calls, strict=True):
            here = {variant.trace: times[str(variant.trace), _shapes(arguments)] for variant in variants}
            default = next(seconds for trace, seconds in here.items() if is_default(trace))
            if default < FAILED_SECONDS:
                yield key, default, min(here.values())

    def _variants(self, function: Function, traces: Sequence[Trace]) -> list[_Variant]:
        default = schedule_by_rules(function.func, self._target, self._tvm_target)
        variants = [_Variant(default_trace(function.workload), default.scheduled)]
        seen: set[str] = set()
        for trace in traces:
            sch = retarget(trace, function.func, self._tvm_target)
            if sch is not None and str(sch.trace) not in seen:
                seen.add(str(sch.trace))
                variants.append(_Variant(sch.trace, with_known_tiles(sch.mod["main"], self._tvm_target)))
        return variants

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


def _place(record: TuningRecord) -> tuple[str, tuple[tuple[int, ...], ...]]:
    return str(record.trace), tuple(tuple(map(int, info.shape)) for info in record.args_info)
