"""The matrix product for many rows on Hopper: blocks that stay, and load one tile while they store another."""

from dataclasses import dataclass
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, BufferRegion, PrimExpr, PrimFunc

from tkc.kernels.matmul import shared_depth, tf32
from tkc.kernels.matmul.columns import first_column, holds, tiles_across
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated
from tkc.kernels.matmul.raster import tile_at
from tkc.kernels.matmul.spec import MatmulConfiguration, MatmulParameters
from tkc.kernels.matmul.tiling import ITEM_BYTES, STORES_IN_FLIGHT
from tkc.kernels.warpgroups import LOADING_REGISTERS, SPLITTING_REGISTERS, WARPGROUP, computing_registers


@dataclass(frozen=True)
class _Shared:
    """What the warpgroups share: slices of the operands, parts of the output, and barriers.

    These say that a slice is ``loaded``, and that it is ``free`` again. Slices of a residual follow those of a tile's
    operands, and lie where the left one's do. Of the ``bias``, each that stores has its tile's columns. Operands of
    ``float32`` are multiplied by parts, and sums of shares of the depth go through an ``exchange``.
    """

    a: Buffer
    b: Buffer
    staged: Buffer
    bias: Buffer
    loaded: Buffer
    free: Buffer
    float32: tf32.Slices | None
    exchange: shared_depth.Exchange | None


def define(p: MatmulParameters, c: MatmulConfiguration, types: SimpleNamespace) -> PrimFunc:
    """The kernel over the same tensors as the one with a block for each tile: those of ``types``, and ``None`` for
    others. Where these have a batch axis in front, tiles of one entry follow those of another.

    TileLang divides the warps of one tile's loop by itself, but lets those that load wait for the end of the tile. Here
    they have their own loop over all slices of all tiles, and wait for nothing but free memory. Each of the others
    stores its own rows, by parts, each on its way while the next is computed: none waits for another.

    For float32 operands there is one more warpgroup, which takes the right one apart for the others.
    """
    float32 = p.dtype == "float32"
    batched = len(types.out.shape) == 3
    transposed = p.weight_layout == "nk"
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)
    steps, column_tiles = -(-p.k // c.block_k), tiles_across(p, c.block_n)
    width = c.stored_columns(ITEM_BYTES[p.stored_dtype])
    parts = c.block_n // width
    added = tuple(range(0, c.block_n, c.block_k)) if p.residual else ()  # where each slice of the residual begins
    bias_columns = -(-c.block_n // WARPGROUP) * WARPGROUP  # each thread of a warpgroup loads as many
    warpgroups = c.threads // WARPGROUP
    # What threads keep of their registers whose warpgroups compute nothing.
    kept = (LOADING_REGISTERS, SPLITTING_REGISTERS) if float32 else (LOADING_REGISTERS,)
    rows, row_parts = c.warpgroup_rows, c.block_m // c.warpgroup_rows

    def place(tile: PrimExpr, row_tiles: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The entry of the batch that a tile is of, and where in it the tile begins."""
        entry = 0
        if batched:
            each = row_tiles * column_tiles
            entry, tile = T.truncdiv(tile, each), T.truncmod(tile, each)
        row_tile, column_tile = tile_at(tile, row_tiles, column_tiles)
        return entry, row_tile * c.block_m, first_column(p, c.block_n, column_tile)

    def tile_of(
        matrices: Buffer, entry: PrimExpr, row: PrimExpr, column: PrimExpr, rows: int, columns: int
    ) -> BufferRegion:
        """``rows`` and ``columns`` of an entry's matrix, from ``row`` and ``column`` on."""
        batch = (entry,) if batched else ()
        return matrices[(*batch, slice(row, row + rows), slice(column, column + columns))]

    def slot(turn: PrimExpr, step: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a slice of the block's ``turn``-th tile lies, and how often others have lain there, modulo 2."""
        slice_ = turn * (steps + len(added)) + step
        return slice_ % c.stages, slice_ // c.stages % 2

    def residual_slices(part: int) -> list[tuple[int, int]]:
        """The slices of the residual that begin in a ``part`` of the tile: their numbers, and where they do."""
        return [(nth, left) for nth, left in enumerate(added) if left // width == part]

    @T.macro
    def activate(acc: Buffer, first: PrimExpr, columns: int, bias: Buffer | None, row_part: int):
        """Bias and activation, for columns of a tile from its ``first`` on."""
        if p.bias or p.activation:
            for i, j in T.Parallel(rows, columns):
                x = acc[i, first + j]
                if p.bias:
                    x = x + T.cast(bias[row_part, first + j], "float32")
                acc[i, first + j] = activated(x, p.activation, exact=float32)

    @T.macro
    def finish(
        row_part: int,
        turn: PrimExpr,
        entry: PrimExpr,
        row: PrimExpr,
        column: PrimExpr,
        acc: Buffer,
        own_bias: Buffer,
        s: _Shared,
        args: SimpleNamespace,
    ):
        """Add and activate what follows the sums of a warpgroup's rows, and store them."""
        top = row_part * rows
        own_rows = slice(top, top + rows)
        if p.bias:
            # Only the thread that stores waits; what the others do next is ordered after it by the barrier that
            # follows this copy. TileLang puts none between the wait for the first part and its threads' writes.
            T.tma_store_wait(STORES_IN_FLIGHT - 1)
            T.copy(own_bias, s.bias[row_part, :])
        for part, first in enumerate(range(0, c.block_n, width)):
            # What this part is the first to need: parts are stored while later slices are still to come.
            for nth, left in residual_slices(part):
                columns = min(c.block_k, c.block_n - left)
                activate(acc, left, columns, s.bias, row_part)
                at, parity = slot(turn, steps + nth)
                T.mbarrier_wait_parity(s.loaded[at], parity)
                for i, j in T.Parallel(rows, columns):
                    acc[i, left + j] += T.cast(s.a[at, top + i, j], "float32")
                T.mbarrier_arrive(s.free[at])
            turned = (turn * parts + part) % STORES_IN_FLIGHT
            T.tma_store_wait(STORES_IN_FLIGHT - 1)
            if not p.residual:
                activate(acc, first, width, s.bias, row_part)
            for i, j in T.Parallel(rows, width):
                s.staged[turned, top + i, j] = T.cast(acc[i, first + j], p.stored_dtype)
            for i, (begin, end) in enumerate(p.ranges):
                if holds(p, column, begin, end):
                    T.tma_copy(
                        s.staged[turned, own_rows, :],
                        tile_of(args.outputs[i], entry, row, column + first - begin, rows, width),
                    )

    @T.macro
    def compute(
        warpgroup: int, turns: PrimExpr, row_tiles: PrimExpr, block: PrimExpr, s: _Shared, args: SimpleNamespace
    ):
        """Multiply one warpgroup's rows of all tiles, its share of the depth, and store what it has added up."""
        share, row_part = divmod(warpgroup, row_parts)
        top = row_part * rows
        own_rows = slice(top, top + rows)
        acc = T.alloc_fragment((rows, c.block_n), "float32")
        own = tf32.registers(rows, c) if float32 else None
        own_bias = T.alloc_fragment((bias_columns,), p.dtype)
        entry = T.alloc_var("int32")
        row = T.alloc_var("int32")
        column = T.alloc_var("int32")
        for turn in T.serial(turns):
            begin = place(turn * c.blocks + block, row_tiles)
            entry = begin[0]
            row = begin[1] + top
            column = begin[2]
            if p.bias and share == 0:  # it comes while the products run
                T.copy(args.bias[column : column + bias_columns], own_bias)
            T.clear(acc)
            for nth in T.serial(-(-max(steps - share, 0) // c.shares)):
                at, parity = slot(turn, nth * c.shares + share)
                T.mbarrier_wait_parity(s.loaded[at], parity)
                if float32:
                    tf32.multiply(s.float32, at, parity, own_rows, own)
                    T.mbarrier_arrive(s.free[at])
                    # The tensor cores' sums are rounded toward zero; these are not.
                    for i, j in T.Parallel(rows, c.block_n):
                        acc[i, j] += own.products[i, j]
                else:
                    full_row = T.GemmWarpPolicy.FullRow
                    T.gemm(s.a[at, own_rows, :], s.b[at, :, :], acc, transpose_B=transposed, policy=full_row)
                    T.mbarrier_arrive(s.free[at])
            if c.shares > 1:
                shared_depth.add_up(share, row_part, own_rows, turn, acc, s.exchange)
            if share == 0:
                finish(row_part, turn, entry, row, column, acc, own_bias, s, args)
        T.tma_store_wait(0)

    @T.macro
    def by_warpgroup(
        first: int,
        thread: PrimExpr,
        turns: PrimExpr,
        row_tiles: PrimExpr,
        block: PrimExpr,
        s: _Shared,
        args: SimpleNamespace,
    ):
        """What each of the warpgroups computes, from the ``first`` on."""
        if first == warpgroups - 1 or thread < WARPGROUP * (len(kept) + first + 1):
            compute(first, turns, row_tiles, block, s, args)
        else:
            by_warpgroup(first + 1, thread, turns, row_tiles, block, s, args)

    @T.prim_func
    def matmul(
        a: types.a,
        b: types.b,
        bias: types.bias,
        residual: types.residual,
        out: types.out,
        out_1: types.out_1,
        out_2: types.out_2,
        out_3: types.out_3,
    ):
        if p.activation is not None and not float32:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = out.shape[-2]
        row_tiles = T.ceildiv(m, c.block_m)
        tiles = row_tiles * column_tiles * (out.shape[0] if batched else 1)
        with T.Kernel(c.blocks, threads=WARPGROUP * len(kept) + c.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared((c.stages, *b_tile), p.dtype)
            staged = T.alloc_shared((STORES_IN_FLIGHT, c.block_m, width), p.stored_dtype)
            tile_bias = T.alloc_shared((row_parts, bias_columns), p.dtype)
            loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            free = T.alloc_barrier([WARPGROUP * row_parts] * c.stages)
            turns = T.ceildiv(T.max(tiles - block, 0), c.blocks)
            by_parts = tf32.slices(a_shared, b_shared, c, p.weight_layout) if float32 else None
            shared = _Shared(a_shared, b_shared, staged, tile_bias, loaded, free, by_parts, shared_depth.exchange(c))
            args = SimpleNamespace(bias=bias, outputs=(out, out_1, out_2, out_3))
            thread = T.get_thread_binding()
            entry = T.alloc_var("int32")
            row = T.alloc_var("int32")
            column = T.alloc_var("int32")
            if thread < WARPGROUP:
                if warpgroups > 1:
                    T.dec_max_nreg(LOADING_REGISTERS)
                for turn in T.serial(turns):
                    begin = place(turn * c.blocks + block, row_tiles)
                    entry = begin[0]
                    row = begin[1]
                    column = begin[2]
                    for step in T.serial(steps):
                        at, parity = slot(turn, step)
                        depth = step * c.block_k
                        T.mbarrier_wait_parity(free[at], parity ^ 1)
                        T.tma_copy(
                            tile_of(a, entry, row, depth, c.block_m, c.block_k), a_shared[at, :, :], barrier=loaded[at]
                        )
                        corner = (column, depth) if transposed else (depth, column)
                        T.tma_copy(tile_of(b, entry, *corner, *b_tile), b_shared[at, :, :], barrier=loaded[at])
                        T.mbarrier_arrive(loaded[at])
                    for nth, left in enumerate(added):
                        at, parity = slot(turn, steps + nth)
                        T.mbarrier_wait_parity(free[at], parity ^ 1)
                        T.tma_copy(
                            tile_of(residual, entry, row, column + left, c.block_m, c.block_k),
                            a_shared[at, :, :],
                            barrier=loaded[at],
                        )
                        T.mbarrier_arrive(loaded[at])
            elif float32 and thread < 2 * WARPGROUP:
                if warpgroups > 1:
                    T.dec_max_nreg(SPLITTING_REGISTERS)
                for turn in T.serial(turns):
                    for step in T.serial(steps):
                        at, parity = slot(turn, step)
                        T.mbarrier_wait_parity(loaded[at], parity)
                        tf32.take_apart(by_parts, at, thread - WARPGROUP)
                        T.mbarrier_arrive(by_parts.split[at])
                    for nth in range(len(added)):  # of which there is nothing to take apart
                        at, parity = slot(turn, steps + nth)
                        T.mbarrier_wait_parity(loaded[at], parity)
                        T.mbarrier_arrive(by_parts.split[at])
            else:
                if warpgroups > 1:  # else there are enough registers for all
                    T.inc_max_nreg(computing_registers(warpgroups, *kept))
                by_warpgroup(0, thread, turns, row_tiles, block, shared, args)

    return matmul
