"""Tuning records made by hand, and a lookup that finds them: what the tests of scheduling need of a database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace
from tvm_ffi import structural_equal

from tkc.schedules.database import as_workload


def record_of(
    func: tirx.PrimFunc,
    trace: Trace,
    target: tvm.target.Target,
    measured: tirx.PrimFunc | None = None,
    seconds: float = 1e-3,
) -> TuningRecord:
    """A record of ``trace`` for ``func``, measured with the arguments of ``measured`` (itself)."""
    arguments = ArgInfo.from_prim_func(func if measured is None else measured)
    return TuningRecord(trace, Workload(as_workload(func)), [seconds], target, arguments)


@dataclass(frozen=True)
class Records:
    """What a lookup returns: records of one workload, best first."""

    records: tuple[TuningRecord, ...]
    match: str = "exact"
    device: str = "a test machine"
    other_device: bool = False
    root: Path = Path()

    @property
    def workload(self) -> Workload:
        """The workload that the records are of."""
        return self.records[0].workload


@dataclass(frozen=True)
class OneFunction:
    """A lookup that knows the records of one function: of what is structurally equal to ``func``."""

    func: tirx.PrimFunc
    found: Records

    def find(self, func: tirx.PrimFunc) -> Records | None:
        """The records, for that function."""
        return self.found if structural_equal(as_workload(func), as_workload(self.func)) else None
