"""Random schedules of MetaSchedule's own search space: what tuning would measure, without measuring."""

from __future__ import annotations

import itertools

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule
from tvm.s_tir.schedule import Trace

from tkc.kernels.target import Target
from tkc.schedules.database import as_workload
from tkc.schedules.tuning import tensor_instructions

_ATTEMPTS = 20


def the_function(module: tvm.IRModule) -> tuple[tvm.ir.GlobalVar, tirx.PrimFunc]:
    """The one TensorIR function of ``module``."""
    (pair,) = [(v, f) for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    return pair


def random_traces(func: tirx.PrimFunc, target: tvm.target.Target, count: int) -> list[Trace]:
    """``count`` different traces that MetaSchedule's rules and postprocessors make of ``func``, with their decisions.

    The sketches take turns, so that each kind of schedule in the space comes up.
    """
    tensor_instructions.register(Target.parse("cuda:sm_90a" if target.kind.name == "cuda" else "cpu"))
    workload = as_workload(func)
    context = meta_schedule.TuneContext(
        mod=workload,
        target=target,
        space_generator=meta_schedule.space_generator.PostOrderApply(),
        rand_state=1,
        num_threads=1,
    )
    sketches = itertools.cycle(context.generate_design_space())
    found: dict[str, Trace] = {}
    for seed, sketch in zip(range(1, _ATTEMPTS * count), sketches, strict=False):
        sch = s_tir.Schedule(workload, seed=seed)
        Trace(sketch.trace.insts, {}).apply_to_schedule(sch, remove_postproc=True)
        sch.enter_postproc()
        if all(postproc.apply(sch) for postproc in context.space_generator.postprocs):
            found.setdefault(str(sch.trace), sch.trace)
        if len(found) == count:
            break
    assert found, "the space has no legal schedule"
    return list(found.values())
