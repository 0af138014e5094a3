"""Elementwise, gathering and layout-changing functions on the GPU: a thread an element, or 16 bytes of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd, prod

from tvm import DataType, arith, s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import substitute

from tkc.schedules.blocks import child_blocks, inline_injective, is_injective, nodes, static
from tkc.schedules.rules.gpu_sized_elementwise import joined_rows, sized_elementwise

_THREADS = 256
_VECTOR_BYTES = 16
# The widest vectors CUDA code generation has types for: in every dtype of numbers, and of truth values.
_MOST_LANES = 8
_MOST_BOOL_LANES = 4
_MOST_ROWS = 4
_LEAST_THREADS = 1 << 18  # what an H200 has resident, nearly: rows are shared only beyond that


def schedule_gpu_elementwise(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule a function of injective blocks only; ``None`` for any other."""
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None or not all(is_injective(sch.get(block)) for block in child_blocks(sch)):
        return None
    inline_injective(sch, child_blocks(sch), merged=False)
    if len(child_blocks(sch)) == 1:
        (block,) = child_blocks(sch)
        found = sized_elementwise(func, sch.get(block)) or joined_rows(func, sch.get(block))
        if found is not None:
            return found
    for block in child_blocks(sch):
        bind_elementwise(sch, block)
    return sch


def moves_vectors(func: tirx.PrimFunc) -> bool:
    """Whether threads move whole vectors of all that ``func``, of injective blocks only, reads and writes."""
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None or not all(is_injective(sch.get(block)) for block in child_blocks(sch)):
        return False
    inline_injective(sch, child_blocks(sch), merged=False)
    blocks = child_blocks(sch)
    return len(blocks) == 1 and _lanes(sch, blocks[0]) > 1


def bind_elementwise(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Make the injective ``block`` a kernel."""
    lanes, loops = _lanes(sch, block), sch.get_loops(block)
    if lanes == 1:
        _bind_threads(sch, sch.fuse(*loops) if loops else sch.add_unit_loop(block))
        return
    statement = sch.get(block)
    rows = _rows(sch, block, lanes)
    vector, lane = sch.split(loops[-1], [None, lanes])
    if rows == 1:
        row = thread = _bind_threads(sch, sch.fuse(*loops[:-1], vector))
    else:
        along, row = sch.split(loops[-2], [None, rows])
        sch.reorder(along, vector, row)
        thread = _bind_threads(sch, sch.fuse(*loops[:-2], along, vector))
        sch.unroll(row)
    if _is_copy(statement):
        # Without a copy in registers, which a gather's row index would address: that puts them into local memory.
        sch.vectorize(lane)
        return
    # Whole vectors are only copied; CUDA has no arithmetic on most of them.
    reads = contiguous_reads(statement, statement.iter_vars[-1].var, lanes)
    copies = [(_is_of_all_rows(statement, index), sch.cache_read(block, index, "local", [block])) for index in reads]
    for is_of_all_rows, copy in copies:
        sch.compute_at(copy, thread if is_of_all_rows else row)
    stored = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(stored, row)
    for copy in (*(copy for _, copy in copies), stored):
        move_by_vectors(sch, copy)
    sch.unroll(lane)


def move_by_vectors(sch: s_tir.Schedule, copy: SBlockRV) -> None:
    """Have ``copy``, whose innermost loop runs over elements side by side, move 16 bytes of them at a time."""
    lane, dtype = sch.get_loops(copy)[-1], sch.get(copy).writes[0].buffer.dtype
    widest = _MOST_BOOL_LANES if dtype == "bool" else _VECTOR_BYTES // DataType(dtype).itemsize
    if (static(sch.get(lane).extent) or 0) > widest:
        part, lane = sch.split(lane, [None, widest])
        sch.unroll(part)
    sch.vectorize(lane)


def _rows(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> int:
    """How many rows a thread computes: several where they share what it reads, and there are enough for the device."""
    loops, statement = sch.get_loops(block), sch.get(block)
    extents = [static(sch.get(loop).extent) for loop in loops]
    shared = any(
        _is_of_all_rows(statement, index) for index in contiguous_reads(statement, statement.iter_vars[-1].var)
    )
    if not shared or len(loops) != len(statement.iter_vars):
        return 1
    vectors = prod(extent or 1 for extent in extents) // lanes
    rows = _MOST_ROWS
    while (extents[-2] or 1) % rows or vectors < rows * _LEAST_THREADS:
        rows //= 2
        if rows == 1:
            break
    return rows


def _is_of_all_rows(block: tirx.SBlock, read: int) -> bool:
    """Whether the last of several iterators alone decides what is read."""
    last = block.iter_vars[-1].var
    return len(block.iter_vars) > 1 and all(
        set(undefined_vars(part.min)) <= {last} for part in block.reads[read].region
    )


def _bind_threads(sch: s_tir.Schedule, loop: LoopRV) -> LoopRV:
    # No more threads than there are iterations: where there is one, its copies would carry no index of the thread, and
    # so every thread would store, also those that computed nothing.
    extent = sch.get(loop).extent
    threads = min(_THREADS, int(extent)) if isinstance(extent, tirx.IntImm) else _THREADS
    group, thread = sch.split(loop, [None, threads])
    sch.bind(group, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _lanes(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many elements one thread can move as one vector: the most whose loads and stores are all aligned.

    What all rows share is read seldom, and may take several vectors.
    """
    statement = sch.get(block)
    loops = sch.get_loops(block)
    extent = static(sch.get(loops[-1]).extent) if loops else None
    if extent is None:
        return 1
    lanes = gcd(extent, _MOST_LANES)
    while lanes > 1:
        if _runs_contiguously(statement, lanes):
            reads = contiguous_reads(statement, statement.iter_vars[-1].var, lanes)
            moved = [statement.reads[index] for index in reads if not _is_of_all_rows(statement, index)]
            moved += statement.writes
            widest = max(DataType(region.buffer.dtype).itemsize for region in moved)
            most = _MOST_BOOL_LANES if any(region.buffer.dtype == "bool" for region in moved) else _MOST_LANES
            aligned = aligned_lanes(gcd(lanes, min(_VECTOR_BYTES // widest, most)), moved)
            if aligned == 1 or _loads_vectors(sch, block, aligned):
                return aligned
        lanes //= 2
    return 1


def _loads_vectors(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> bool:
    """Whether TVM finds that a thread's elements of a part of a row, which it reads, are one vector of ``lanes``."""
    statement = sch.get(block)
    last = statement.iter_vars[-1].var
    plain = contiguous_reads(statement, last)
    for index in contiguous_reads(statement, last, lanes):
        if index in plain:
            continue
        tried = sch.copy()
        vector, _ = tried.split(tried.get_loops(block)[-1], [None, lanes])
        copy = tried.cache_read(block, index, "local", [block])
        tried.compute_at(copy, vector)
        predicate = get_sblockrealize(tried, copy).predicate
        if static(tried.get(tried.get_loops(copy)[-1]).extent) != lanes or static(predicate) != 1:
            return False
    return True


def aligned_lanes(lanes: int, moved: Sequence[tirx.BufferRegion]) -> int:
    """``lanes``, a power of two, or fewer, so that rows of the buffers begin at whole vectors.

    What is moved may be less than a row, as a slice is.
    """
    rows = [static(region.buffer.shape[-1]) if region.buffer.shape else 1 for region in moved]
    return 1 if None in rows else gcd(lanes, *(row for row in rows if row is not None))


def _runs_contiguously(block: tirx.SBlock, lanes: int) -> bool:
    """Whether every access either does not depend on the last iterator or runs along it, in vectors of ``lanes``.

    Where an access depends on a condition (padding), that must be the same for the elements of a row, and all sizes
    known: TVM cannot bound what is read otherwise.
    """
    last = block.iter_vars[-1].var
    accesses = [node for node in nodes(block.body) if isinstance(node, tirx.BufferLoad | tirx.BufferStore)]
    calls = [node for node in nodes(block.body) if isinstance(node, tirx.Call)]
    conditions = [call.args[0] for call in calls if call.op.name == "tirx.if_then_else"]
    if any(last in undefined_vars(condition) for condition in conditions):
        return False
    if conditions and None in [static(iterator.dom.extent) for iterator in block.iter_vars]:
        return False
    runs = partial(_runs, block, lanes)
    return all(
        not any(last in undefined_vars(index) for index in access.indices) or runs(access.indices)
        for access in accesses
    )


def _is_copy(block: tirx.SBlock) -> bool:
    """Whether the block only moves what runs along its last iterator."""
    source = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    return isinstance(source, tirx.BufferLoad) and _is_contiguous(source.indices, block.iter_vars[-1].var)


def contiguous_reads(block: tirx.SBlock, last: tirx.Var, lanes: int = 0) -> list[int]:
    """Which of the block's reads run along ``last``, one of its iterators: of one element each.

    With ``lanes``, ``last`` is its last one, and reads may run so far and go on elsewhere.

    A copy in registers of several, of which a condition chooses one, would be addressed by it: that puts it into local
    memory.
    """
    is_along = partial(_runs, block, lanes) if lanes else partial(_is_contiguous, last=last)
    return [
        index
        for index, read in enumerate(block.reads)
        if is_along([part.min for part in read.region]) and all(static(part.extent) == 1 for part in read.region)
    ]


def _runs(block: tirx.SBlock, lanes: int, indices: Sequence[tirx.PrimExpr]) -> bool:
    """Whether ``indices`` go on by one, along the innermost axis and from a multiple of ``lanes`` on, for as many
    elements of the last iterator as well: of a row that is part of another one, as a head's of all heads."""
    last = block.iter_vars[-1]
    if not indices or _is_contiguous(indices, last.var):
        return bool(indices)
    analyzer, vector, lane = arith.Analyzer(), tirx.Var("vector", last.var.dtype), tirx.Var("lane", last.var.dtype)
    for iterator in block.iter_vars[:-1]:
        analyzer.bind(iterator.var, iterator.dom)
    analyzer.bind(vector, Range(0, tirx.floordiv(last.dom.extent, lanes)))
    analyzer.bind(lane, Range(0, lanes))
    *outer, inner = [substitute(index, {last.var: vector * lanes + lane}) for index in indices]
    places = [*map(analyzer.simplify, outer), analyzer.simplify(inner - lane)]
    if any(lane in undefined_vars(place) for place in places):
        return False
    multiple = analyzer.modular_set(places[-1])
    return bool(multiple.coeff % lanes == 0 and multiple.base % lanes == 0)


def _is_contiguous(indices: Sequence[tirx.PrimExpr], last: tirx.Var) -> bool:
    return (
        len(indices) > 0
        and indices[-1].same_as(last)
        and not any(last in undefined_vars(index) for index in indices[:-1])
    )
