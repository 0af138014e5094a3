"""Reductions over rows of any length, and what follows from them, on the GPU: softmax, normalization, sums, maxima.

A warp, or a block, reduces a row. Rows are read once: threads hold their elements in registers, of which there are
enough for the lengths that a variant is for. The host chooses the variant where only calls know the length; that for
the longest rows reads them again.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from tkc.schedules.blocks import child_blocks, inline_injective, is_costly, is_reduction, reads_along, static
from tkc.schedules.rules.row_steps import rows_of
from tkc.schedules.rules.row_threads import RowThreads, Variant
from tkc.schedules.rules.thread_code import launched

_REDUCED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")  # what warps exchange

_VARIANTS = (
    Variant(32, 4),
    Variant(32, 8),
    Variant(32, 16),
    Variant(128, 8),
    Variant(256, 8),
    Variant(256, 16),
    Variant(256, None),
)


def schedule_gpu_rows(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule reductions of the contiguous last axis, all over the same rows.

    Of a known length two or more, and rows that threads hold: others have rules that read less, or sum in parts.

    Injective blocks may come before, between and after, which compute an element each of an element, or of a row.
    ``None`` for anything else.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if not reductions or any(not _is_along_rows(sch.get(block)) for block in reductions):
        return None
    # What takes time is computed once: threads hold it.
    cheap = [block for block in child_blocks(sch) if not is_costly(sch.get(block)) or len(sch.get_consumers(block)) < 2]
    inline_injective(sch, cheap, merged=False)
    rows = rows_of([sch.get(block) for block in child_blocks(sch)], set(func.buffer_map.values()))
    if rows is None:
        return None
    if (length := static(rows.length)) is not None:
        holding = [v for v in _VARIANTS if v.held is not None and length <= v.threads * v.held]
        if len(reductions) == 1 or not holding:
            return None
        return launched(func, [(None, RowThreads(rows, holding[0]).launch())])
    longest = [variant.threads * variant.held for variant in _VARIANTS if variant.held is not None]
    launches = []
    for number, variant in enumerate(_VARIANTS):
        above = rows.length > longest[number - 1] if number else None
        below = rows.length <= longest[number] if number < len(longest) else None
        conditions = [condition for condition in (above, below) if condition is not None]
        launches.append((tirx.all(*conditions), RowThreads(rows, variant).launch()))
    return launched(func, launches)


def _is_along_rows(block: tirx.SBlock) -> bool:
    """Whether ``block`` reduces one axis of several elements into one buffer, and what it reads lies along that."""
    reducing = [i for i in block.iter_vars if i.iter_type == tirx.IterVar.CommReduce]
    along = [number for number, i in enumerate(block.iter_vars) if i.iter_type == tirx.IterVar.CommReduce]
    return (
        len(reducing) == 1
        and static(reducing[0].dom.extent) != 1
        and len(block.writes) == 1
        and block.writes[0].buffer.dtype in _REDUCED
        and isinstance(block.body, tirx.BufferStore)
        and reads_along(block, along[0])
    )
