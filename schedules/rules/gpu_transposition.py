"""Elementwise functions on the GPU that read across rows what they compute: tiles of that go through shared memory.

Without, neighboring threads would read from as many rows, each a sector of which most goes unused. What is transposed
may be of a gather, as a relative position's score is: its rows are read along, and written to shared memory.
"""

from __future__ import annotations

from functools import partial

from tvm import DataType, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from tkc.schedules.blocks import child_blocks, inline_injective, is_injective, static

_TILE = 32
_ROWS_AT_ONCE = 8
_BANK_BYTES = 4
_MOST_STAGED = 4


def schedule_gpu_transposition(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule a function of injective blocks, of which some are read transposed; ``None`` for any other."""
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None or not all(is_injective(sch.get(block)) for block in child_blocks(sch)):
        return None
    staged = _transposed(sch)
    if not 0 < len(staged) <= _MOST_STAGED:
        return None
    kept = {sch.get(block).name_hint for block in staged}
    inline_injective(sch, [block for block in child_blocks(sch) if sch.get(block).name_hint not in kept], merged=False)
    *sources, result = child_blocks(sch)
    if {sch.get(block).name_hint for block in sources} != kept:
        return None
    axes = {_row(sch.get(result), sch.get(source).writes[0].buffer) for source in sources}
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None:
        return None
    _bind_tiles(sch, result, axis, sources)
    return sch


def _transposed(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks whose result, which nothing else reads, another block has with its axes in another order."""
    found = []
    for block in child_blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) == 1 and sch.get_producers(consumers[0]) and _is_transposition(sch.get(consumers[0])):
            found.append(block)
    return found


def _is_transposition(block: tirx.SBlock) -> bool:
    """Whether the block has the elements of a tensor of as many axes, of which another one is the last."""
    source = block.body.value
    variables = [iterator.var for iterator in block.iter_vars]
    if not isinstance(source, tirx.BufferLoad) or len(source.indices) != len(variables):
        return False
    order = [next((n for n, var in enumerate(variables) if index.same_as(var)), None) for index in source.indices]
    return None not in order and len(set(order)) == len(order) and order[-1] != len(order) - 1


def _row(block: tirx.SBlock, buffer: tirx.Buffer) -> int | None:
    """Which iterator of ``block`` runs along rows of ``buffer`` that the last one runs across, if they fill tiles."""
    *others, last = block.iter_vars
    regions = _regions(block, buffer)
    if len(regions) != 1 or any(static(axis.extent) != 1 for axis in regions[0]):
        return None
    *places, along = [axis.min for axis in regions[0]]
    if not any(place.same_as(last.var) for place in places):
        return None
    row = next((n for n, iterator in enumerate(others) if iterator.var.same_as(along)), None)
    if row is None or not all(_fills_tiles(static(iterator.dom.extent)) for iterator in (others[row], last)):
        return None
    return row


def _regions(block: tirx.SBlock, buffer: tirx.Buffer) -> list[tirx.Array]:
    return [read.region for read in block.reads if read.buffer.same_as(buffer)]


def _fills_tiles(extent: int | None) -> bool:
    """Whether there is one along an axis, and at least two of three places in all of them are used."""
    return extent is None or (extent >= _TILE and 2 * (-(-extent // _TILE) * _TILE) <= 3 * extent)


def _column(block: tirx.SBlock, buffer: tirx.Buffer) -> int:
    """The axis of ``buffer`` along which the last iterator of ``block`` runs."""
    (region,) = _regions(block, buffer)
    return next(axis for axis, place in enumerate(region) if place.min.same_as(block.iter_vars[-1].var))


def _bind_tiles(sch: s_tir.Schedule, result: SBlockRV, axis: int, sources: list[SBlockRV]) -> None:
    """A block of threads for each tile of ``result`` along its last loop and that of ``axis``."""
    *loops, last = sch.get_loops(result)
    rows, row = sch.split(loops.pop(axis), [None, _TILE])
    columns, column = sch.split(last, [None, _TILE])
    sch.reorder(*loops, rows, columns, row, column)
    tile = sch.fuse(*loops, rows, columns)
    sch.bind(tile, "blockIdx.x")
    _bind_tile(sch, row, column)
    for source in sources:
        across = _column(sch.get(result), sch.get(source).writes[0].buffer)
        sch.compute_at(source, tile)
        sch.set_scope(source, 0, "shared")
        _bind_tile(sch, *sch.get_loops(source)[-2:])
        # What a tile takes is known then, where it may end before its last row or column, too.
        sch.transform_layout(source, ("write", 0), partial(_in_tiles, across), assume_injective_transform=True)
        buffer = sch.get(source).writes[0].buffer
        gap = max(1, _BANK_BYTES // DataType(buffer.dtype).itemsize)
        sch.storage_align(source, 0, len(buffer.shape) - 2, _TILE, gap)


def _in_tiles(across: int, *index: tirx.Var) -> list[tirx.PrimExpr]:
    """Where an element is: the tiles of the axis ``across`` and of the last one, and within them its place."""
    tiles = [number // _TILE if axis in (across, len(index) - 1) else number for axis, number in enumerate(index)]
    return [*tiles, index[across] % _TILE, index[-1] % _TILE]


def _bind_tile(sch: s_tir.Schedule, row: s_tir.schedule.LoopRV, column: s_tir.schedule.LoopRV) -> None:
    steps, at_once = sch.split(row, [None, _ROWS_AT_ONCE])
    sch.bind(at_once, "threadIdx.y")
    sch.bind(column, "threadIdx.x")
    sch.unroll(steps)
