"""The matrix product of scaled FP8 operands in TileLang, for tensor cores and for the CPU."""

import dataclasses
import math

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.raster import RASTER_BAND
from tkc.kernels.scaled_matmul import persistent
from tkc.kernels.scaled_matmul.parameters import OPERAND_DTYPE, ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledMatmul, ScaledTiling
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: ScaledMatmulParameters, configuration: ScaledTiling, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``a_scale``, ``b_scale`` and ``out``."""
    if target.is_cuda:
        if configuration.blocks:
            return persistent.define(parameters, configuration)
        return _cuda(parameters, configuration, target)
    columns = min(configuration.block_n, parameters.n)
    return _cpu(parameters, dataclasses.replace(configuration, block_n=columns))


def _cuda(p: ScaledMatmulParameters, c: ScaledTiling, target: Target) -> PrimFunc:
    tensors = tensor_types(ScaledMatmul(), p)
    # The tile's columns in parts that lie in one block of the weight each.
    part_columns = math.gcd(c.block_n, QUANTIZATION_BLOCK)
    parts = c.block_n // part_columns

    @T.prim_func
    def scaled_matmul(
        a: tensors.a, b: tensors.b, a_scale: tensors.a_scale, b_scale: tensors.b_scale, out: tensors.out
    ) -> None:
        m = a.shape[0]
        with T.Kernel(T.ceildiv(m, c.block_m), T.ceildiv(p.n, c.block_n), threads=c.threads) as (row_tile, column_tile):
            T.use_swizzle(RASTER_BAND, order="column")
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), OPERAND_DTYPE)
            b_shared = T.alloc_shared((c.block_n, c.block_k), OPERAND_DTYPE)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.out_dtype)
            # The tensor cores' sums keep fewer bits than float32, so that each group's goes into another one, scaled.
            group_sum = T.alloc_fragment((c.block_m, c.block_n), "float32")
            total = T.alloc_fragment((c.block_m, c.block_n), "float32")
            row_scale = T.alloc_fragment((c.block_m,), "float32")
            scale = T.alloc_fragment((c.block_m, parts), "float32")
            row, column = row_tile * c.block_m, column_tile * c.block_n
            T.clear(total)
            for group in T.Pipelined(T.ceildiv(p.k, c.block_k), num_stages=c.stages):
                T.copy(a[row, group * c.block_k], a_shared)
                T.copy(b[column, group * c.block_k], b_shared)
                # Before the product, so that it hides the time that the scales take to arrive.
                for i in T.Parallel(c.block_m):
                    row_scale[i] = a_scale[row + i, group]
                for i, part in T.Parallel(c.block_m, parts):
                    block = (column + part * part_columns) // QUANTIZATION_BLOCK
                    scale[i, part] = row_scale[i] * b_scale[block, group]
                T.gemm(
                    a_shared, b_shared, group_sum, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow
                )
                for i, j in T.Parallel(c.block_m, c.block_n):
                    total[i, j] += group_sum[i, j] * scale[i, j // part_columns]
            T.copy(total, out_shared)
            T.copy(out_shared, out[row, column])

    return scaled_matmul


def _cpu(p: ScaledMatmulParameters, c: ScaledTiling) -> PrimFunc:
    tensors = tensor_types(ScaledMatmul(), p, storage=storage_dtype)

    def products(
        a: Buffer, b: Buffer, a_scale: Buffer, b_scale: Buffer, rows: list[PrimExpr], column: PrimExpr
    ) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            group, block = depth // QUANTIZATION_BLOCK, (column + j) // QUANTIZATION_BLOCK
            left = to_float32(a[rows[i], depth], OPERAND_DTYPE) * a_scale[rows[i], group]
            return left * (to_float32(b[column + j, depth], OPERAND_DTYPE) * b_scale[block, group])

        return product

    @T.prim_func
    def scaled_matmul(
        a: tensors.a, b: tensors.b, a_scale: tensors.a_scale, b_scale: tensors.b_scale, out: tensors.out
    ) -> None:
        m = a.shape[0]
        with T.Kernel(T.ceildiv(p.n, c.block_n), T.ceildiv(m, c.block_m)) as (column_tile, row_tile):
            # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
            column = T.min(column_tile * c.block_n, p.n - c.block_n)
            rows = [T.min(row_tile * c.block_m + i, m - 1) for i in range(c.block_m)]
            sums = register_tile(c, p.k, products(a, b, a_scale, b_scale, rows, column))
            for row, row_sums in zip(rows, sums, strict=True):
                for j in T.serial(c.block_n):
                    out[row, column + j] = from_float32(row_sums[j, 0], p.out_dtype)

    return scaled_matmul
