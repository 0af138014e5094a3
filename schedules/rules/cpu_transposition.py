"""Transpositions on the CPU, in tiles: of what is read across its rows, a cache line serves a whole row of a tile."""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from tkc.schedules.blocks import SERIAL_ELEMENTS, is_injective, partition_tail, static
from tkc.schedules.target import vector_lanes

_TILE = 16  # float32 in a cache line
_LEAST = 4
_CACHED_LINES = 256  # a quarter of the first cache
_UNKNOWN = 1024  # what sizes known only at run time are taken for


def transposed_axis(block: tirx.SBlock) -> int | None:
    """Which iterator of ``block``, an injective one, runs along rows of something that the last one runs across.

    ``None`` if there is none, or if the lines are still in the cache when it comes to their next elements.
    """
    if not is_injective(block) or len(block.iter_vars) < 2:
        return None
    *others, last = block.iter_vars
    if (static(last.dom.extent) or _UNKNOWN) < _LEAST:
        return None
    for read in block.reads:
        places = [axis.min for axis in read.region]
        if not places or not all(static(axis.extent) == 1 for axis in read.region):
            continue
        across = any(place.same_as(last.var) for place in places[:-1])
        for number, iterator in enumerate(others):
            is_long = (static(iterator.dom.extent) or _UNKNOWN) >= _LEAST
            between = math.prod(static(inner.dom.extent) or _UNKNOWN for inner in (*others[number + 1 :], last))
            if across and is_long and between > _CACHED_LINES and places[-1].same_as(iterator.var):
                return number
    return None


def schedule_transposition(sch: s_tir.Schedule, block: SBlockRV, axis: int, target: Target) -> None:
    """Compute ``block`` in tiles along its last loop and that of ``axis``; rows of tiles in parallel."""
    loops = sch.get_loops(block)
    along, last = loops[axis], loops[-1]
    lanes = vector_lanes(target, "float32")
    elements = math.prod(static(sch.get(loop).extent) or _UNKNOWN for loop in loops)
    outer = [loop for loop in loops if loop not in (along, last)]
    tiles, row = sch.split(along, [None, _tile(static(sch.get(along).extent))])
    vectors, lane = sch.split(last, [None, lanes])
    sch.reorder(*outer, tiles, vectors, row, lane)
    fused = sch.fuse(*outer, tiles)
    if elements > SERIAL_ELEMENTS:
        sch.parallel(fused)
    partition_tail(sch, block, vectors)
    sch.vectorize(lane)


def _tile(extent: int | None) -> int:
    """As many rows as a cache line has elements, or the most below that which leave no remainder."""
    if extent is None:
        return _TILE
    whole = next(tile for tile in range(_TILE, 0, -1) if extent % tile == 0)
    return whole if whole >= _TILE // 2 else min(_TILE, extent)
