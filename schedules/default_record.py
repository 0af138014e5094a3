"""The tuning record that says: nothing that was tried beats the schedule of the default rules."""

from __future__ import annotations

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import Trace

from tkc.contracts import BY_RULES, DEFAULT_SCHEDULE


def default_trace(workload: tvm.IRModule) -> Trace:
    """A trace that marks ``workload`` as one for the default rules, whose schedules have no traces of their own."""
    sch = s_tir.Schedule(workload)
    # Most functions have a block "root" around the others; one written by hand may be a single block of another name.
    sch.annotate(sch.get_sblock(workload["main"].body.block.name_hint), DEFAULT_SCHEDULE, BY_RULES)
    return sch.trace


def is_default(trace: Trace) -> bool:
    """Whether ``trace`` is one of :func:`default_trace`."""
    return any(
        instruction.kind.name == "Annotate" and DEFAULT_SCHEDULE in map(str, instruction.attrs)
        for instruction in trace.insts
    )
