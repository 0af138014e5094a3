"""Matrix products on the CPU, without search: packed panels and a register tile, as in Goto and van de Geijn's GEMM.

"Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34(3), 2008). Every core takes panels of columns: it packs
the panel of the right operand once, then for each strip of rows packs the left operand and runs tiles that stay in
vector registers over the whole reduction. Packing pads to whole tiles, so sizes that are odd or known only at run
time run the same inner loop; casts and other elementwise work on the operands happen while packing, and what
follows the product happens on the finished tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu.matmul import get_index_map
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from tkc.schedules.blocks import attempt, divides_by_sizes, is_injective, partition_tail, reads_along, static
from tkc.schedules.target import vector_bits, vector_lanes

LOW_PRECISION = ("float16", "bfloat16")
_UNROLL_REDUCTION = 4
# How many strips of rows a core takes where there are fewer panels than cores.
_STRIPS = 8
# TVM keeps a buffer on the stack only below this size, and LLVM keeps only such a buffer in registers.
_STACK_BYTES = 1024


@dataclass(frozen=True)
class MatmulTile:
    """``rows`` × ``columns`` of the result are computed in registers; a core takes ``panel`` columns at a time."""

    rows: int
    columns: int
    panel: int


def matmul_tile(target: Target, dtype: str, rows: int | None, columns: int | None) -> MatmulTile:
    """The register tile for results of ``dtype`` on ``target``; ``rows`` and ``columns`` are the sizes if known.

    Two vectors wide, and as high as the vector registers (three are left for the operands) and the stack allow.
    """
    bits = vector_bits(target)
    registers = 32 if bits >= 512 else 16
    lanes = vector_lanes(target, dtype)
    width = 2 * lanes if columns is None or columns > lanes else lanes
    height = min((registers - 3) // 2, (_STACK_BYTES - 1) // (2 * bits // 8))
    tiles = 2 if columns is None or -(-columns // width) % 2 == 0 else 1
    return MatmulTile(height if rows is None else min(height, rows), width, tiles * width)


def is_matmul(block: tirx.SBlock) -> bool:
    """Whether ``block`` sums products over an axis of both operands (``C[s, i, j] += A[s, i, k] * B[s, j, k]``)."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return False
    product = store.value.b
    while isinstance(product, tirx.Cast):
        product = product.value
    return isinstance(product, tirx.Mul) and get_index_map(block) is not None


def schedule_matmul(sch: s_tir.Schedule, block: SBlockRV, target: Target) -> tirx.PrimExpr:
    """Schedule the matrix product ``block`` and everything elementwise around it, in place; return its number of rows.

    Raises :class:`tvm.s_tir.ScheduleError` if its operands are indexed in a way that has no such form.
    """
    write = _canonicalize(sch, block)
    _, rows, columns, depth = (iter_var.dom.extent for iter_var in sch.get(block).iter_vars)
    dtype = _accumulator_dtype(sch.get(block).writes[0].buffer.dtype)
    tile = matmul_tile(target, dtype, static(rows), static(columns))
    sch.pad_einsum(block, [1, tile.rows, tile.panel, 1])
    result = sch.cache_write(block, 0, "global")
    sch.unsafe_set_dtype(block, 0, dtype)

    batch, row, column, reduction = sch.get_loops(block)
    strip, row = sch.split(row, [None, tile.rows])
    panel, tile_of_panel, column = sch.split(column, [None, tile.panel // tile.columns, tile.columns])
    sch.reorder(batch, panel, strip, tile_of_panel, reduction, row, column)
    core = sch.fuse(batch, panel)
    if _needs_more_parallelism(sch, core, target):
        strips, strip = sch.split(strip, [None, _STRIPS])
        core = sch.fuse(core, strips)
    sch.parallel(core)

    _pack_left(sch, block, strip, dtype)
    _pack_right(sch, block, core, tile, dtype)
    sch.reverse_compute_at(result, tile_of_panel, preserve_unit_loops=True)
    _inline_epilogue(sch, result, write)
    _guard(sch, result, rows, columns)

    sch.unroll(row)
    sch.vectorize(column)
    *_, result_row, result_column = sch.get_loops(result)
    sch.unroll(result_row)
    sch.vectorize(result_column)
    if (static(depth) or 1) % _UNROLL_REDUCTION == 0:
        reduction, unrolled = sch.split(reduction, [None, _UNROLL_REDUCTION])
        sch.unroll(unrolled)
    sch.decompose_reduction(block, reduction)
    # Only the last tile of a panel can stick out of the result; without this, every store would be guarded by lane.
    partition_tail(sch, result, tile_of_panel)
    return rows


def _canonicalize(sch: s_tir.Schedule, block: SBlockRV) -> SBlockRV:
    """Give ``block`` the loops (batch, row, column, reduction) and operands indexed by them alone.

    Returns the block that copies the product to where it was written before.
    """
    reads = [sch.reindex(block, ("read", index)) for index in range(2)]
    write = sch.reindex(block, ("write", 0))
    of_block, *of_reads, of_write = get_index_map(sch.get(block))
    for read, index_map in zip(reads, of_reads, strict=True):
        sch.transform_layout(read, ("write", 0), index_map)
    sch.transform_layout(write, ("read", 0), of_write)
    sch.transform_block_layout(block, of_block)
    return write


def _pack_left(sch: s_tir.Schedule, block: SBlockRV, strip: LoopRV, dtype: str) -> None:
    """Copy a strip of rows of the left operand, in the accumulator's dtype."""
    pack = sch.cache_read(block, 0, "global")
    sch.compute_at(pack, strip)
    _inline_prologue(sch, pack)
    sch.unsafe_set_dtype(pack, 0, dtype)
    outer, lane = sch.split(sch.get_loops(pack)[-1], [None, 16])
    sch.vectorize(lane)
    partition_tail(sch, pack, outer)


def _pack_right(sch: s_tir.Schedule, block: SBlockRV, core: LoopRV, tile: MatmulTile, dtype: str) -> None:
    """Copy a panel of the right operand so that the inner loop reads it in order, in the accumulator's dtype."""
    width = tile.columns
    pack = sch.cache_read(block, 1, "global")
    sch.transform_layout(pack, ("write", 0), lambda s, n, k: (s, n // width, k, n % width))
    sch.compute_at(pack, core)
    _inline_prologue(sch, pack)
    sch.unsafe_set_dtype(pack, 0, dtype)
    *_, column, reduction = sch.get_loops(pack)
    column, lane = sch.split(column, [None, width])
    if reads_along(sch.get(pack), -1):
        # The operand is stored by rows of the reduction: take a cache line of each row, or every element costs a line.
        reduction, line = sch.split(reduction, [None, 16])
        sch.reorder(column, reduction, lane, line)
        sch.unroll(line)
        partition_tail(sch, pack, reduction)
    else:
        sch.reorder(column, reduction, lane)
        sch.vectorize(lane)
    partition_tail(sch, pack, column)


def _inline_prologue(sch: s_tir.Schedule, pack: SBlockRV) -> None:
    """Inline what computes an operand elementwise into the block that packs it."""

    def inlines(block: SBlockRV) -> bool:
        statement = sch.get(block)
        return is_injective(statement) and not divides_by_sizes(statement) and attempt(sch.compute_inline, block)

    while any(inlines(block) for block in sch.get_producers(pack)):
        pass


def _inline_epilogue(sch: s_tir.Schedule, result: SBlockRV, write: SBlockRV) -> None:
    """Inline what follows the product element by element into ``result``, the block that writes the finished tile."""
    while any(attempt(sch.compute_inline, block) for block in _intermediates(sch, write)):
        pass
    after = [block for block in sch.get_consumers(write) if _reads_in_place(sch, write, block)]
    written = False
    while not written:
        (consumer,) = sch.get_consumers(result)
        written = _same(sch, consumer, write)
        sch.reverse_compute_inline(consumer)
    for block in after:
        attempt(sch.reverse_compute_inline, block)


def _intermediates(sch: s_tir.Schedule, producer: SBlockRV) -> list[SBlockRV]:
    """The injective blocks between ``producer`` and the last one that follows it element by element."""
    found: list[SBlockRV] = []
    for block in sch.get_consumers(producer):
        after = list(sch.get_consumers(block))
        if after and all(_reads_in_place(sch, *pair) for pair in ((producer, block), *((block, it) for it in after))):
            found += [block, *sch.get_producers(after[0])]
    return [block for block in found if is_injective(sch.get(block)) and not _same(sch, block, producer)]


def _same(sch: s_tir.Schedule, one: SBlockRV, other: SBlockRV) -> bool:
    return bool(sch.get(one).same_as(sch.get(other)))


def _reads_in_place(sch: s_tir.Schedule, producer: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether ``consumer`` is injective and has its own iterators as the indices at which it reads ``producer``."""
    block, written = sch.get(consumer), sch.get(producer).writes[0].buffer
    iterators = [iterator.var for iterator in block.iter_vars]
    reads = [read for read in block.reads if read.buffer.same_as(written)]
    return is_injective(block) and all(
        isinstance(part.min, tirx.IntImm) or part.min in iterators for read in reads for part in read.region
    )


def _guard(sch: s_tir.Schedule, result: SBlockRV, rows: tirx.PrimExpr, columns: tirx.PrimExpr) -> None:
    """Keep ``result`` from writing the rows and columns that only padding added.

    TVM derives guards when it inlines what follows, but from the shape of the last output alone: where that is a
    reshape of the product, a padded row would land in the row of another matrix.
    """
    block = sch.get(result)
    _, row, column = (iterator.var for iterator in block.iter_vars)
    inside = tirx.all(row < rows, column < columns)
    guarded = tirx.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.IfThenElse(inside, block.body, None),
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    sch.state.replace(sch.get_sref(result), guarded, {block: guarded})


def _needs_more_parallelism(sch: s_tir.Schedule, core: LoopRV, target: Target) -> bool:
    panels = static(sch.get(core).extent)
    return panels is not None and panels < 2 * int(target.attrs.get("num-cores", 1))


def _accumulator_dtype(dtype: str) -> str:
    return "float32" if str(dtype) in LOW_PRECISION else str(dtype)
