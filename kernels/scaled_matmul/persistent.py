"""The scaled matrix product for Hopper in blocks that compute several tiles, loading one while they store another."""

import math

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.matmul.tiling import RASTER_BAND
from tkc.kernels.scaled_matmul.spec import OPERAND_DTYPE, ScaledMatmul, ScaledMatmulParameters, ScaledTiling
from tkc.kernels.swiglu.spec import QUANTIZATION_BLOCK
from tkc.kernels.tensor_types import tensor_types
from tkc.kernels.warpgroups import LOADING_REGISTERS, WARPGROUP, computing_registers


def define(p: ScaledMatmulParameters, c: ScaledTiling) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``a_scale``, ``b_scale`` and ``out``.

    TileLang divides the warps of one tile's loop by itself, but lets those that load wait for the end of the tile. Here
    they have their own loop over all slices of all tiles, and wait for nothing but free memory.
    """
    tensors = tensor_types(ScaledMatmul(), p)
    part_columns = math.gcd(c.block_n, QUANTIZATION_BLOCK)
    parts = c.block_n // part_columns
    groups, column_tiles = -(-p.k // c.block_k), -(-p.n // c.block_n)

    def slot(tile: PrimExpr, group: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a slice lies in shared memory, and how often others have lain there before, modulo 2."""
        slice_ = tile * groups + group
        return slice_ % c.stages, slice_ // c.stages % 2

    @T.prim_func
    def scaled_matmul(a: tensors.a, b: tensors.b, a_scale: tensors.a_scale, b_scale: tensors.b_scale, out: tensors.out):
        m = a.shape[0]
        with T.Kernel(T.ceildiv(column_tiles, c.tiles), T.ceildiv(m, c.block_m), threads=WARPGROUP + c.threads) as (
            band,
            row_tile,
        ):
            T.use_swizzle(RASTER_BAND)
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), OPERAND_DTYPE)
            b_shared = T.alloc_shared((c.stages, c.block_n, c.block_k), OPERAND_DTYPE)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.out_dtype)
            group_sum = T.alloc_fragment((c.block_m, c.block_n), "float32")
            total = T.alloc_fragment((c.block_m, c.block_n), "float32")
            row_scale = T.alloc_fragment((c.block_m,), "float32")
            scale = T.alloc_fragment((c.block_m, parts), "float32")
            loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            free = T.alloc_barrier([c.threads] * c.stages)
            row = row_tile * c.block_m
            tiles = T.min(c.tiles, column_tiles - band * c.tiles)
            if T.get_thread_binding() < WARPGROUP:
                T.dec_max_nreg(LOADING_REGISTERS)
                for tile, group in T.grid(tiles, groups):
                    at, parity = slot(tile, group)
                    column, depth = (band * c.tiles + tile) * c.block_n, group * c.block_k
                    T.mbarrier_wait_parity(free[at], parity ^ 1)
                    T.tma_copy(
                        a[row : row + c.block_m, depth : depth + c.block_k], a_shared[at, :, :], barrier=loaded[at]
                    )
                    T.tma_copy(
                        b[column : column + c.block_n, depth : depth + c.block_k],
                        b_shared[at, :, :],
                        barrier=loaded[at],
                    )
                    T.mbarrier_arrive(loaded[at])
            else:
                T.inc_max_nreg(computing_registers(c.threads // WARPGROUP))
                for tile in T.serial(tiles):
                    column = (band * c.tiles + tile) * c.block_n
                    T.clear(total)
                    for group in T.serial(groups):
                        at, parity = slot(tile, group)
                        for i in T.Parallel(c.block_m):
                            row_scale[i] = a_scale[row + i, group]
                        for i, part in T.Parallel(c.block_m, parts):
                            block = (column + part * part_columns) // QUANTIZATION_BLOCK
                            scale[i, part] = row_scale[i] * b_scale[block, group]
                        T.mbarrier_wait_parity(loaded[at], parity)
                        T.gemm(
                            a_shared[at, :, :],
                            b_shared[at, :, :],
                            group_sum,
                            transpose_B=True,
                            clear_accum=True,
                            policy=T.GemmWarpPolicy.FullRow,
                        )
                        T.mbarrier_arrive(free[at])
                        for i, j in T.Parallel(c.block_m, c.block_n):
                            total[i, j] += group_sum[i, j] * scale[i, j // part_columns]
                    T.copy(total, out_shared)
                    T.copy(out_shared, out[row, column])

    return scaled_matmul
