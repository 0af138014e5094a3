"""Sums over the windows of images of any size, channels last, on the GPU: a thread a vector of channels, at several
positions.

TVM's primitives cannot size the registers of such a schedule: what positions along a row of unknown length read
together has a length that is not known. So :mod:`~tkc.schedules.rules.window_threads` writes out the loops, from the
blocks that TVM has inlined.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from tkc.schedules.blocks import child_blocks, inline_injective, is_reduction, static
from tkc.schedules.rules.gpu_vector_reduction import takes_each
from tkc.schedules.rules.window_sums import iterators, sums_of_windows, surrounded
from tkc.schedules.rules.window_threads import WindowThreads


def schedule_gpu_windows(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule what :func:`schedule_gpu_vector_reduction` does where an image has sizes known only at run time.

    ``None`` for anything else. A thread reduces 16 bytes of neighbouring outputs at four positions along the axis
    before, which in a convolution share the weight, and most of what they read. Positions beyond the end of the axis
    sum zeros, and are not stored.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if len(reductions) != 1 or not _is_of_any_size(sch.get(reductions[0])):
        return None
    (reduction,) = reductions
    padding = [block for block in sch.get_producers(reduction) if surrounded(sch.get(block)) is not None]
    kept = {sch.get(block).name_hint for block in padding}
    inline_injective(sch, [block for block in child_blocks(sch) if sch.get(block).name_hint not in kept], merged=False)
    if len(padding) > 1 or len(sch.get(reduction).writes) != 1:
        return None
    if not sch.get_consumers(reduction):
        sch.cache_write(reduction, 0, "local")
    consumers = [sch.get(block) for block in sch.get_consumers(reduction)]
    if len(child_blocks(sch)) != 2 + len(padding) or not takes_each(consumers[0], sch.get(reduction)):
        return None
    sums = sums_of_windows(sch.get(reduction), consumers[0], sch.get(padding[0]) if padding else None)
    return None if sums is None else WindowThreads(sums).schedule(func)


def _is_of_any_size(reduction: tirx.SBlock) -> bool:
    """Whether more than the size of the batch is only known at run time; not how many numbers make a sum, though."""
    spatial, reducing = iterators(reduction)
    sizes = [static(iterator.dom.extent) for iterator in spatial]
    known = all(static(iterator.dom.extent) is not None for iterator in reducing)
    return known and len(sizes) > 1 and sizes[-1] is not None and None in (sizes[1:] if len(sizes) > 2 else sizes)
