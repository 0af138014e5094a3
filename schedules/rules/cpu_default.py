"""Everything on the CPU that is no matrix product: rows or chunks in parallel, vectors along contiguous dimensions.

Reductions along the contiguous dimension keep one partial result a vector lane and join them at the end. Blocks that
walk the same rows (softmax, the norms) are done row by row, so that a row stays in the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import arith, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from tkc.schedules.blocks import (
    SERIAL_ELEMENTS,
    child_blocks,
    inline_injective,
    is_injective,
    is_reduction,
    iterator_kinds,
    loop_kinds,
    partition_tail,
    reads_along,
    static,
)
from tkc.schedules.rules.cpu_matmul import LOW_PRECISION, is_matmul, schedule_matmul
from tkc.schedules.rules.cpu_transposition import schedule_transposition, transposed_axis
from tkc.schedules.rules.merge_reductions import merge_reductions
from tkc.schedules.rules.pad_reduction import pad_reductions
from tkc.schedules.sizes.dispatch import chosen
from tkc.schedules.target import vector_lanes

# What a core takes at a time of a dimension that is split for parallelism.
_CHUNK_VECTORS = 64
# So many rows are computed one by one, of a product with what is stored by rows of the reduction (the weight of a
# linear layer) and by columns. Measured on one core (docs/notebook/2026-11-25.md).
_FEW_STORED_ROWS = 6
_FEW_STORED_COLUMNS = 2
# How often something may be computed, at the edges of chunks.
_MOST_REPEATED = 2
# Counts as this many rows when the number is known only at run time.
_MANY_ROWS = 1024


@dataclass(frozen=True)
class _Product:
    """A product's number of ``rows``, of which up to ``few`` are faster one by one: packing takes longer than them."""

    rows: tirx.PrimExpr
    few: int


def schedule_cpu_matmul(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule a function that holds matrix products, and whatever else it holds; ``None`` if there are none."""
    found = _tiled(func, target)
    return None if found is None else found[0]


def schedule_cpu_matmul_by_rows(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """The same, without tiles for a product of few rows, and in both forms for one of symbolic rows.

    A row may have other bits among few than among many.
    """
    found = _tiled(func, target)
    if found is None:
        return None
    tiled, products = found
    if len(products) != 1:
        return tiled
    (product,) = products
    rows = static(product.rows)
    if product.few == 0 or (rows is not None and rows > product.few):
        return tiled
    normalized = _normalized(func, target)
    assert normalized is not None
    by_rows = _schedule_rest(normalized, target)
    if rows is not None:
        return by_rows
    forms = chosen(func, product.rows <= product.few, by_rows.mod["main"], tiled.mod["main"])
    return s_tir.Schedule(forms)


def _tiled(func: tirx.PrimFunc, target: Target) -> tuple[s_tir.Schedule, list[_Product]] | None:
    """``func`` with its products in tiles, and which those are; ``None`` if it has none."""
    sch = _normalized(func, target)
    if sch is None:
        return None
    blocks = [block for block in child_blocks(sch) if is_matmul(sch.get(block))]
    if not blocks:
        return None
    products = []
    for block in blocks:
        few = _few_rows(sch.get(block))
        products.append(_Product(schedule_matmul(sch, block, target), few))
    return _schedule_rest(sch, target), products


def _few_rows(product: tirx.SBlock) -> int:
    if product.writes[0].buffer.dtype in LOW_PRECISION:
        return 0  # tiles are summed in float32
    return _FEW_STORED_ROWS if _reduces_along_vectors(product) else _FEW_STORED_COLUMNS


def schedule_cpu_default(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule a function of elementwise, gathering and reducing blocks; ``None`` if a block is of another kind."""
    sch = _normalized(func, target)
    return None if sch is None else _schedule_rest(sch, target)


def _normalized(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """A schedule of ``func`` in which each block's loops are its iterators; ``None`` if it has no such form."""
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    blocks = [sch.get(block) for block in child_blocks(sch)]
    if not blocks or not all(is_injective(block) or is_reduction(block) for block in blocks):
        return None
    lanes = 2 * vector_lanes(target, "float32")
    merged = merge_reductions(sch.mod["main"], lanes, is_matmul)
    return s_tir.Schedule(pad_reductions(merged, lanes, is_matmul))


def _schedule_rest(sch: s_tir.Schedule, target: Target) -> s_tir.Schedule:
    """``sch`` with every block that is not yet parallel scheduled too."""
    inline_injective(sch, [block for block in child_blocks(sch) if not _is_parallel(sch, block)])
    blocks = [block for block in child_blocks(sch) if not _is_parallel(sch, block)]
    if len(blocks) > 1 and (together := _row_by_row(sch, blocks, _common_rows(sch, blocks), target)) is not None:
        return together
    for block in blocks:
        rows = _row_loops(sch, block)
        if (axis := transposed_axis(sch.get(block))) is not None:
            schedule_transposition(sch, block, axis, target)
        elif not _reduces_along_vectors(sch.get(block)):
            _schedule_rows(sch, [block], rows, target)
        elif (done := _row_by_row(sch, [block], rows, target)) is not None:
            sch = done
        else:
            _schedule_rows(sch, [block], rows, target, split=False)
    return sch


def _is_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return any(sch.get(loop).kind == tirx.ForKind.PARALLEL for loop in sch.get_loops(block))


def _row_by_row(sch: s_tir.Schedule, blocks: list[SBlockRV], rows: int, target: Target) -> s_tir.Schedule | None:
    """The schedule with ``blocks`` computed in one loop over their first ``rows`` loops; ``None`` if they cannot be."""
    if rows == 0 and len(blocks) > 1:
        return None
    attempt = sch.copy()
    try:
        _schedule_rows(attempt, blocks, rows, target)
    except (s_tir.ScheduleError, _RepeatsWorkError):  # several results, or a block needs more than its row of another
        return None
    return attempt


class _RepeatsWorkError(Exception):
    """More of a block would be computed for each row of another than that row needs."""


def _row_loops(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many leading loops count rows: the spatial ones, but not the one that vectors run along."""
    leading = _leading_spatial(sch, block)
    return leading if _reduces_along_vectors(sch.get(block)) else max(leading - 1, 0)


def _leading_spatial(sch: s_tir.Schedule, block: SBlockRV) -> int:
    kinds = iterator_kinds(sch.get(block))
    return len(kinds) - len(kinds.lstrip("S"))


def _reduces_along_vectors(block: tirx.SBlock) -> bool:
    """Whether what is reduced lies contiguous along the last reduction iterator, and not along the last spatial one."""
    kinds = iterator_kinds(block)
    if not kinds.endswith("R"):
        return False
    return reads_along(block, -1) and ("S" not in kinds or not reads_along(block, kinds.rindex("S"), across=-1))


def _common_rows(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> int:
    """How many leading row loops all ``blocks`` share, judged by their extents.

    A result of one element a row (a mean, say) has only row loops, so reductions decide, if there are any.
    """
    analyzer = arith.Analyzer()
    reductions = [block for block in blocks if is_reduction(sch.get(block))]
    most = min(_row_loops(sch, block) for block in reductions or blocks)
    rows = [[sch.get(loop).extent for loop in sch.get_loops(block)[: _leading_spatial(sch, block)]] for block in blocks]
    common = 0
    for extents in list(zip(*rows, strict=False))[:most]:
        if not all(analyzer.can_prove_equal(extents[0], extent) for extent in extents):
            break
        common += 1
    return common


def _schedule_rows(
    sch: s_tir.Schedule, blocks: list[SBlockRV], rows: int, target: Target, *, split: bool = True
) -> None:
    """Compute ``blocks`` inside the first ``rows`` loops of the last one, those in parallel, with vectors inside.

    Raises :class:`_RepeatsWorkError`; not for one block whose reductions are not ``split``.
    """
    lanes = vector_lanes(target, "float32")
    worth_parallel = any(_elements(sch, block) > SERIAL_ELEMENTS for block in blocks)
    stages = [s for block in blocks for s in (_split_reduction(sch, block, 2 * lanes) if split else [block])]
    *producers, last = stages
    row = _row_loop(sch, last, rows, lanes, target)
    if worth_parallel:
        sch.parallel(row)
    for stage in reversed(producers):
        steps = _steps(sch, stage)
        sch.compute_at(stage, row, preserve_unit_loops=True)
        # TVM takes the whole of a buffer where it cannot tell which part is read: of sizes computed in floats, say.
        if math.isinf(steps) or _steps(sch, stage) > _MOST_REPEATED * steps:
            raise _RepeatsWorkError
    for stage in stages:
        _vectorize(sch, stage, lanes)


def _steps(sch: s_tir.Schedule, block: SBlockRV) -> float:
    """How often ``block`` runs where every symbolic size is ``_MANY_ROWS``; infinite if that cannot be told."""
    return math.prod(_extent(sch.get(loop).extent) for loop in sch.get_loops(block))


def _extent(extent: tirx.PrimExpr) -> float:
    many = {variable: tirx.IntImm(variable.dtype, _MANY_ROWS) for variable in undefined_vars(extent)}
    found = arith.Analyzer().simplify(tirx.stmt_functor.substitute(extent, many))
    return int(found) if isinstance(found, tirx.IntImm) else math.inf


def _elements(sch: s_tir.Schedule, block: SBlockRV) -> int:
    return math.prod(static(sch.get(loop).extent) or _MANY_ROWS for loop in sch.get_loops(block))


def _split_reduction(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> list[SBlockRV]:
    """The block as two: a partial result in each of ``lanes`` lanes, and their join; or as it is."""
    statement = sch.get(block)
    if not _reduces_along_vectors(statement) or not isinstance(statement.body, tirx.BufferStore):
        return [block]
    innermost = sch.get_loops(block)[-1]
    extent = sch.get(innermost).extent
    if static(extent) == lanes or not arith.Analyzer().can_prove_equal(tirx.floormod(extent, lanes), 0):
        return [block]
    _, lane = sch.split(innermost, [None, lanes])
    return [sch.rfactor(lane, len(statement.writes[0].region)), block]


def _row_loop(sch: s_tir.Schedule, block: SBlockRV, rows: int, lanes: int, target: Target) -> LoopRV:
    """One loop over the rows of ``block``; over chunks of its rows where there are too few for every core."""
    loops = sch.get_loops(block)
    if not loops:
        return sch.add_unit_loop(block)
    count = math.prod(static(sch.get(loop).extent) or _MANY_ROWS for loop in loops[:rows])
    kinds = loop_kinds(sch, block)
    outer = loops[:rows]
    few = count < 4 * int(target.attrs.get("num-cores", 1))
    length = static(sch.get(loops[rows]).extent) if rows < len(loops) and kinds[rows] == "S" else 1
    # A row within one chunk is not divided: it would be one loop more, and of one element no vector.
    if few and (length is None or length > _CHUNK_VECTORS * lanes):
        chunks, _ = sch.split(loops[rows], [None, _CHUNK_VECTORS * lanes])
        outer.append(chunks)
    return sch.fuse(*outer) if outer else sch.add_unit_loop(loops[0])


def _vectorize(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> None:
    """Run vectors along the last spatial loop of a row, inside the reduction if there is one."""
    _, *loops = sch.get_loops(block)
    kinds = loop_kinds(sch, block)[1:]
    reductions = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    spatial = [
        loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S" and static(sch.get(loop).extent) != 1
    ]
    if not spatial:
        if any(static(sch.get(loop).extent) is None for loop in reductions):
            # Of no elements at a call, too, there is a sum: it begins before the loop, not in its first step.
            sch.decompose_reduction(block, reductions[0])
        return
    vectors = [spatial[-1]]
    extent = static(sch.get(spatial[-1]).extent)
    if extent is None or extent > 2 * lanes:
        vectors = sch.split(spatial[-1], [None, lanes])
        partition_tail(sch, block, vectors[0])
    sch.vectorize(vectors[-1])
    if reductions:
        sch.reorder(*reductions, *vectors)
        partition_tail(sch, block, reductions[-1])
        sch.decompose_reduction(block, reductions[0])
