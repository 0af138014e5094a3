"""The matrix product with epilogue in TileLang, for tensor cores and for the CPU."""

import dataclasses

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.matmul import persistent, split
from tkc.kernels.matmul.columns import first_column, holds, tiles_across
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, Epilogue, activated, load_ahead, store
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.spec import OPTIONAL_TENSORS, Matmul
from tkc.kernels.matmul.tiling import Tiling, loadable_by_tma, shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.overlap import admit_next_kernel
from tkc.kernels.raster import RASTER_BAND
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: MatmulParameters, configuration: Tiling, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``bias`` and ``residual`` where there are such, and the outputs."""
    if target.is_cuda:
        if configuration.blocks:
            return persistent.define(parameters, configuration, tensor_types(Matmul(), parameters, OPTIONAL_TENSORS))
        if configuration.splits > 1:
            return split.define(parameters, configuration, target)
        return _cuda(parameters, configuration, target)
    columns = min(configuration.block_n, parameters.n)
    return _cpu(parameters, dataclasses.replace(configuration, block_n=columns))


def _cuda(p: MatmulParameters, c: Tiling, target: Target) -> PrimFunc:
    types = tensor_types(Matmul(), p, OPTIONAL_TENSORS)
    transposed = p.weight_layout == "nk"
    tma = loadable_by_tma(p.strides)
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)

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
    ) -> None:
        if p.activation is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = a.shape[0]
        epilogue = Epilogue(p, bias, residual, (out, out_1, out_2, out_3))
        grid = (T.ceildiv(m, c.block_m), tiles_across(p, c.block_n))
        with T.Kernel(*grid, threads=c.threads) as (row_tile, column_tile):
            T.use_swizzle(RASTER_BAND, order="column")
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared(b_tile, p.dtype)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.stored_dtype)
            acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
            row, column = row_tile * c.block_m, first_column(p, c.block_n, column_tile)
            loaded = load_ahead(epilogue, c, row, column)
            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(p.k, c.block_k), num_stages=c.stages):
                T.copy(a[row, step * c.block_k], a_shared, disable_tma=not tma)
                if transposed:
                    T.copy(b[column, step * c.block_k], b_shared, disable_tma=not tma)
                else:
                    T.copy(b[step * c.block_k, column], b_shared, disable_tma=not tma)
                T.gemm(a_shared, b_shared, acc, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
            admit_next_kernel(target)
            store(epilogue, loaded, acc, out_shared, row, column)

    return matmul


def _cpu(p: MatmulParameters, c: Tiling) -> PrimFunc:
    types = tensor_types(Matmul(), p, OPTIONAL_TENSORS, storage_dtype)

    def products(a: Buffer, rows: list[PrimExpr], b: Buffer, column: PrimExpr) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            weight = b[column + j, depth] if p.weight_layout == "nk" else b[depth, column + j]
            return to_float32(a[rows[i], depth], p.dtype) * to_float32(weight, p.dtype)

        return product

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
    ) -> None:
        m, outputs = a.shape[0], (out, out_1, out_2, out_3)
        with T.Kernel(T.ceildiv(p.n, c.block_n), T.ceildiv(m, c.block_m)) as (column_tile, row_tile):
            # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
            column = T.min(column_tile * c.block_n, p.n - c.block_n)
            rows = [T.min(row_tile * c.block_m + i, m - 1) for i in range(c.block_m)]
            sums = register_tile(c, p.k, products(a, rows, b, column))
            for row, row_sums in zip(rows, sums, strict=True):
                for j in T.serial(c.block_n):
                    x = row_sums[j, 0] + to_float32(bias[column + j], p.dtype) if p.bias else row_sums[j, 0]
                    y = activated(x, p.activation, exact=True)
                    y = y + to_float32(residual[row, column + j], p.stored_dtype) if p.residual else y
                    for i, (begin, end) in enumerate(p.ranges):
                        if holds(p, column + j, begin, end):
                            outputs[i][row, column - begin + j] = from_float32(y, p.stored_dtype)

    return matmul
