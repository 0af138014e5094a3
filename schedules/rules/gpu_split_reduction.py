"""Reductions of many elements to few results, on the GPU, in two kernels: of parts, and of the parts' results.

With a block of threads for each result most multiprocessors would have nothing to do. How many parts there are depends
on sizes alone, so that results are the same from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from tkc.kernels.devices import MULTIPROCESSORS, WARP
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
from tkc.schedules.rules.gpu_strided_reduction import bind_reduction, computed_with, reads_lines
from tkc.schedules.rules.split_reductions import Parts, has_neutral, reduced, with_parts

_BLOCKS = 8 * MULTIPROCESSORS  # of threads in all
_LEAST_PARTS = 4
_UNROLLED = 4  # loads that are on their way at once
_LEAST_STEPS = 32  # of a thread, in a part

_ROW_THREADS, _COLUMN_THREADS = 256, 512
_RESULTS = WARP  # side by side


@dataclass(frozen=True)
class _Division:
    """A reduction in parts, each of which a block of threads reduces: ``results`` side by side, ``along`` for each."""

    parts: Parts
    results: int
    along: int


def schedule_gpu_split_reduction(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule reductions to a known, small number of results, with injective blocks between and around them.

    ``None`` where they have few elements or many results, and for anything else.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    inline_injective(sch, child_blocks(sch), merged=False)
    blocks = {sch.get(block).name_hint: block for block in child_blocks(sch)}
    reductions = [name for name, block in blocks.items() if is_reduction(sch.get(block))]
    found = {name: _division(sch, blocks[name]) for name in reductions}
    divisions = {name: division for name, division in found.items() if division is not None}
    others = [name for name in blocks if name not in reductions]
    if not divisions or len(divisions) < len(found) or not all(is_injective(sch.get(blocks[name])) for name in others):
        return None
    parts = {name: division.parts for name, division in divisions.items()}
    sch = s_tir.Schedule(with_parts(sch.mod["main"], parts))
    for name, division in divisions.items():
        reduction = sch.get_sblock(name)
        _reduce_parts(sch, sch.rfactor(sch.get_loops(reduction)[-2], 0), division)
        # What reads two reductions is computed with the first.
        fused = [block for block in computed_with(sch, reduction) if sch.get(block).name_hint in others]
        others = [other for other in others if other not in {sch.get(block).name_hint for block in fused}]
        bind_reduction(sch, reduction, fused, division.results, min(division.along, division.parts.number))
    for name in others:
        bind_elementwise(sch, sch.get_sblock(name))
    return sch


def _division(sch: s_tir.Schedule, reduction: SBlockRV) -> _Division | None:
    """How to divide a reduction; ``None`` for not at all."""
    block = sch.get(reduction)
    kinds = iterator_kinds(block)
    sizes = [static(i.dom.extent) for i, kind in zip(block.iter_vars, kinds, strict=True) if kind == "S"]
    lengths = [static(i.dom.extent) for i in reduced(block)]
    known = [size for size in sizes if size is not None]
    columns = reads_lines(sch, reduction)
    if len(known) < len(sizes) or not (columns or reads_along(block, kinds.rindex("R"))):
        return None
    results = min(prod(known), _RESULTS) if columns else 1
    along = _power_of_two(_COLUMN_THREADS // results) if columns else _ROW_THREADS
    number = _BLOCKS // -(-prod(known) // results)
    length = None if None in lengths else prod(length or 1 for length in lengths)
    if length is not None:
        number = min(number, length // (along * _LEAST_STEPS))
    if number < _LEAST_PARTS:
        return None
    if has_neutral(block):
        return _Division(Parts(_power_of_two(number), along * _UNROLLED), results, along)
    whole = [] if length is None else [each for each in range(_LEAST_PARTS, number + 1) if length % each == 0]
    return _Division(Parts(whole[-1], 1), results, along) if whole else None


def _power_of_two(number: int) -> int:
    """The largest one up to ``number``."""
    return 1 << number.bit_length() - 1


def _reduce_parts(sch: s_tir.Schedule, block: SBlockRV, division: _Division) -> None:
    """Have a block of threads reduce each part: ``block``, whose last two loops are over parts and in them."""
    *outer, part, step = sch.get_loops(block)
    result = sch.fuse(*outer)
    blocks = [part]
    if (static(sch.get(result).extent) or 0) > division.results:
        group, result = sch.split(result, [None, division.results])
        blocks = [group, part]
    steps, unrolled, along = sch.split(step, [None, _UNROLLED, division.along])
    sch.reorder(*blocks, result, along, steps, unrolled)
    sch.bind(sch.fuse(*blocks), "blockIdx.x")
    sch.bind(result, "threadIdx.x")
    sch.bind(along, "threadIdx.y")
    sch.unroll(unrolled)
