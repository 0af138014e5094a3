"""Reductions of rows whose elements lie side by side, on the GPU: a warp, or a block of threads, for each result."""

from __future__ import annotations

from functools import partial
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from tkc.kernels.devices import WARP
from tkc.schedules.blocks import (
    child_blocks,
    inline_injective,
    is_injective,
    is_reduction,
    iterator_kinds,
    reads_along,
    static,
)
from tkc.schedules.rules.gpu_elementwise import bind_elementwise
from tkc.schedules.rules.gpu_strided_reduction import bind_reduction, computed_with
from tkc.schedules.rules.split_reductions import reduced, with_parts

_MOST_THREADS = 256
_ELEMENTS = 4  # of a thread, at least


def _schedule(func: tirx.PrimFunc, target: Target, *, apart: bool) -> s_tir.Schedule | None:
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    inline_injective(sch, child_blocks(sch), merged=False)
    sch = s_tir.Schedule(with_parts(sch.mod["main"], {}))  # every block has a loop then
    blocks = {sch.get(block).name_hint: block for block in child_blocks(sch)}
    reductions = {name: block for name, block in blocks.items() if is_reduction(sch.get(block))}
    others = {name: block for name, block in blocks.items() if name not in reductions}
    threads = {name: _threads(sch.get(block)) for name, block in reductions.items()}
    if not reductions or None in threads.values() or not all(is_injective(sch.get(each)) for each in others.values()):
        return None
    if len(reductions) > 1 and not apart and any("S" in iterator_kinds(sch.get(each)) for each in reductions.values()):
        return None  # rows may be kept on the chip between both
    for name, reduction in reductions.items():
        # What reads two reductions is computed with the first.
        fused = [block for block in computed_with(sch, reduction) if sch.get(block).name_hint in others]
        for block in fused:
            del others[sch.get(block).name_hint]
        bind_reduction(sch, reduction, fused, 1, threads[name] or 1)
    if others and not apart:
        return None
    for block in others.values():
        bind_elementwise(sch, block)
    return sch


schedule_gpu_row_reduction = partial(_schedule, apart=False)
"""Schedule reductions of contiguous elements, and blocks that compute an element of each result, in one kernel for each
reduction; ``None`` for anything else."""

schedule_gpu_rows_apart = partial(_schedule, apart=True)
"""The same with any other injective blocks, which are kernels of their own: where nothing keeps rows on the chip."""


def _threads(block: tirx.SBlock) -> int | None:
    """How many threads share a result of ``block``; ``None`` where elements do not lie side by side, or are few."""
    if not reads_along(block, iterator_kinds(block).rindex("R")):
        return None
    known = [length for length in (static(iterator.dom.extent) for iterator in reduced(block)) if length is not None]
    if len(known) < len(reduced(block)):
        return _MOST_THREADS
    threads = 1 << max(prod(known) // _ELEMENTS, 1).bit_length() - 1
    return None if prod(known) < WARP else min(max(threads, WARP), _MOST_THREADS)
