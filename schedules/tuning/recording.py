"""Where a tuning job's schedules are measured, for which target, and where records of it are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace

from tkc.kernels.target import Target
from tkc.schedules.database import FAILED_SECONDS
from tkc.schedules.tuning.measurement import Measurement, Measurer, Program
from tkc.schedules.tuning.records import Records
from tkc.schedules.tuning.tasks import Task


@dataclass(frozen=True)
class RecordingMeasurer:
    """What ``measurer`` measures for ``target`` goes into ``records``, each as soon as it is."""

    target: Target
    tvm_target: tvm.target.Target
    measurer: Measurer
    records: Records

    def measured(
        self, candidates: Sequence[tuple[Task, Trace, Program]], until: float | None
    ) -> Iterator[tuple[int, Measurement]]:
        """The position and the measurement of each candidate, of those that there are at ``until``."""
        for index, measurement in self.measurer.measure([program for _, _, program in candidates], until):
            task, trace, _ = candidates[index]
            runs = list(measurement.seconds) or [FAILED_SECONDS]
            args_info = ArgInfo.from_entry_func(task.workload, True)
            record = TuningRecord(trace, Workload(task.workload), runs, self.tvm_target, args_info)
            self.records.commit(record, measurement.error)
            yield index, measurement
