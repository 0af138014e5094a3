"""The matrix product for many rows on Hopper: blocks that stay, and load one tile while they store another."""

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.matmul.columns import first_column, holds, tiles_across
from tkc.kernels.matmul.epilogue import activated
from tkc.kernels.matmul.spec import OPTIONAL_TENSORS, Matmul, MatmulConfiguration, MatmulParameters
from tkc.kernels.matmul.tiling import RASTER_BAND, STORES_IN_FLIGHT
from tkc.kernels.tensor_types import tensor_types
from tkc.kernels.warpgroups import LOADING_REGISTERS, WARPGROUP, computing_registers


def define(p: MatmulParameters, c: MatmulConfiguration) -> PrimFunc:
    """The kernel over the same tensors as the one with a block for each tile.

    TileLang divides the warps of one tile's loop by itself, but lets those that load wait for the end of the tile. Here
    they have their own loop over all slices of all tiles, and wait for nothing but free memory. The output leaves by
    parts, each on its way while the next is computed.
    """
    types = tensor_types(Matmul(), p, OPTIONAL_TENSORS)
    out_dtype = p.out_dtype or p.dtype
    transposed = p.weight_layout == "nk"
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)
    steps, column_tiles = -(-p.k // c.block_k), tiles_across(p, c.block_n)
    width = c.stored_columns
    parts = c.block_n // width

    def place(tile: PrimExpr, row_tiles: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a tile begins. Tiles of consecutive numbers lie in a band of rows, so that they share operands."""
        band = tile // (RASTER_BAND * column_tiles)
        height = T.max(T.min(RASTER_BAND, row_tiles - band * RASTER_BAND), 1)
        within = tile % (RASTER_BAND * column_tiles)
        column_tile = within // height
        return (band * RASTER_BAND + within % height) * c.block_m, first_column(p, c.block_n, column_tile)

    def slot(turn: PrimExpr, step: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a slice of the block's ``turn``-th tile lies, and how often others have lain there, modulo 2."""
        slice_ = turn * steps + step
        return slice_ % c.stages, slice_ // c.stages % 2

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
        m, outputs = a.shape[0], (out, out_1, out_2, out_3)
        with T.Kernel(c.blocks, threads=WARPGROUP + c.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared((c.stages, *b_tile), p.dtype)
            staged = T.alloc_shared((STORES_IN_FLIGHT, c.block_m, width), out_dtype)
            acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
            loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            free = T.alloc_barrier([c.threads] * c.stages)
            added = T.alloc_barrier(c.threads)
            row = T.alloc_var("int32")
            column = T.alloc_var("int32")
            row_tiles = T.ceildiv(m, c.block_m)
            turns = T.ceildiv(T.max(row_tiles * column_tiles - block, 0), c.blocks)
            if T.get_thread_binding() < WARPGROUP:
                T.dec_max_nreg(LOADING_REGISTERS)
                for turn in T.serial(turns):
                    begin = place(turn * c.blocks + block, row_tiles)
                    row = begin[0]
                    column = begin[1]
                    for step in T.serial(steps):
                        at, parity = slot(turn, step)
                        depth = step * c.block_k
                        T.mbarrier_wait_parity(free[at], parity ^ 1)
                        T.tma_copy(
                            a[row : row + c.block_m, depth : depth + c.block_k], a_shared[at, :, :], barrier=loaded[at]
                        )
                        if transposed:
                            T.tma_copy(
                                b[column : column + c.block_n, depth : depth + c.block_k],
                                b_shared[at, :, :],
                                barrier=loaded[at],
                            )
                        else:
                            T.tma_copy(
                                b[depth : depth + c.block_k, column : column + c.block_n],
                                b_shared[at, :, :],
                                barrier=loaded[at],
                            )
                        T.mbarrier_arrive(loaded[at])
            else:
                T.inc_max_nreg(computing_registers(c.threads // WARPGROUP))
                for turn in T.serial(turns):
                    begin = place(turn * c.blocks + block, row_tiles)
                    row = begin[0]
                    column = begin[1]
                    T.clear(acc)
                    for step in T.serial(steps):
                        at, parity = slot(turn, step)
                        T.mbarrier_wait_parity(loaded[at], parity)
                        T.gemm(
                            a_shared[at, :, :],
                            b_shared[at, :, :],
                            acc,
                            transpose_B=transposed,
                            policy=T.GemmWarpPolicy.FullRow,
                        )
                        T.mbarrier_arrive(free[at])
                    for part in T.unroll(parts):
                        first = part * width
                        T.tma_store_wait(STORES_IN_FLIGHT - 1)
                        T.sync_threads()
                        if p.residual:
                            T.tma_copy(
                                residual[row : row + c.block_m, column + first : column + first + width],
                                staged[part % STORES_IN_FLIGHT, :, :],
                                barrier=added,
                            )
                            T.mbarrier_arrive(added)
                        if p.bias or p.activation:
                            for i, j in T.Parallel(c.block_m, width):
                                x = acc[i, first + j]
                                if p.bias:
                                    x = x + T.cast(bias[column + first + j], "float32")
                                acc[i, first + j] = activated(x, p.activation)
                        if p.residual:
                            T.mbarrier_wait_parity(added, (turn * parts + part) % 2)
                            for i, j in T.Parallel(c.block_m, width):
                                acc[i, first + j] += T.cast(staged[part % STORES_IN_FLIGHT, i, j], "float32")
                        for i, j in T.Parallel(c.block_m, width):
                            staged[part % STORES_IN_FLIGHT, i, j] = T.cast(acc[i, first + j], out_dtype)
                        for i, (begin, end) in enumerate(p.ranges):
                            if holds(p, column, begin, end):
                                T.tma_copy(
                                    staged[part % STORES_IN_FLIGHT, :, :],
                                    outputs[i][
                                        row : row + c.block_m, column + first - begin : column + first - begin + width
                                    ],
                                )
                T.tma_store_wait(0)

    return matmul
