"""Reductions over an axis that is not the innermost, on the GPU: a thread an output, and a warp reads whole lines."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from tkc.schedules.blocks import (
    child_blocks,
    inline_injective,
    is_injective,
    is_reduction,
    loop_kinds,
    reads_along,
    static,
)

_THREADS = 256
_MOST_UNROLLED = 16


def schedule_gpu_strided_reduction(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule one reduction, with injective blocks before and at most one after it; ``None`` for anything else.

    The elements that one output sums must lie apart, and those of neighbouring outputs side by side.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    inline_injective(sch, child_blocks(sch))
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if len(reductions) != 1 or not _sums_strided(sch, reductions[0]):
        return None
    (reduction,) = reductions
    consumers = sch.get_consumers(reduction)
    if len(child_blocks(sch)) != 1 + len(consumers) or len(consumers) > 1:
        return None
    if consumers and not is_injective(sch.get(consumers[0])):
        return None
    outer = consumers[0] if consumers else reduction
    loops = list(zip(sch.get_loops(outer), loop_kinds(sch, outer), strict=True))
    spatial = [loop for loop, kind in loops if kind == "S"]
    sch.reorder(*spatial, *(loop for loop, kind in loops if kind == "R"))
    group, thread = sch.split(sch.fuse(*spatial), [None, _THREADS])
    sch.bind(group, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if consumers:
        sch.set_scope(reduction, 0, "local")
        sch.compute_at(reduction, thread)
    for loop, kind in zip(sch.get_loops(reduction), loop_kinds(sch, reduction), strict=True):
        extent = static(sch.get(loop).extent)
        if kind == "R" and extent is not None and extent <= _MOST_UNROLLED:
            sch.unroll(loop)
    return sch


def _sums_strided(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    iterators = sch.get(block).iter_vars
    reducing = [i for i, iterator in enumerate(iterators) if iterator.iter_type == tirx.IterVar.CommReduce]
    spatial = [i for i in range(len(iterators)) if i not in reducing]
    return (
        bool(spatial)
        and reads_along(sch.get(block), spatial[-1])
        and not any(reads_along(sch.get(block), i) for i in reducing)
    )
