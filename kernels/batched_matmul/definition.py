"""The batched matrix product in TileLang, for tensor cores and for the CPU."""

from collections.abc import Callable
from dataclasses import replace

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.batched_matmul.spec import BatchedMatmul, BatchedMatmulConfiguration
from tkc.kernels.matmul import persistent
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.spec import OPTIONAL_TENSORS
from tkc.kernels.matmul.tiling import loadable_by_tma, shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.overlap import admit_next_kernel
from tkc.kernels.raster import tile_at
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types

# The most blocks along a grid's second axis (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability").
GRID_HEIGHT = 65_535

# From a column of a tile to one of the product.
Place = Callable[[PrimExpr], PrimExpr]


def define(parameters: BatchedMatmulParameters, configuration: BatchedMatmulConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``b`` and ``out``."""
    p = parameters
    if not target.is_cuda:
        return _cpu(p, configuration)
    if not configuration.blocks:
        return _cuda(p, configuration, target)
    matrices = MatmulParameters(p.n, p.k, p.dtype, p.layout, p.out_dtype)  # type: ignore[arg-type]  # known: see spec.py
    return persistent.define(matrices, configuration, tensor_types(BatchedMatmul(), p, OPTIONAL_TENSORS))


def _cuda(p: BatchedMatmulParameters, c: BatchedMatmulConfiguration, target: Target) -> PrimFunc:
    types = tensor_types(BatchedMatmul(), p)
    transposed = p.layout == "nk"
    tma = all(stride is not None and loadable_by_tma((stride,)) for stride in p.strides)
    stores_by_tma = p.n is not None and loadable_by_tma((p.n,))
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)

    @T.prim_func
    def batched_matmul(a: types.a, b: types.b, out: types.out) -> None:
        batch, m, n = out.shape
        k = a.shape[2]
        row_tiles, column_tiles = T.ceildiv(m, c.block_m), T.ceildiv(n, c.block_n)
        # Above a grid's height, entries go on in further layers. Of the last one, some blocks have none: their copies
        # lie out of bounds, and do nothing.
        grid = (row_tiles * column_tiles, T.min(batch, GRID_HEIGHT), T.ceildiv(batch, GRID_HEIGHT))
        with T.Kernel(*grid, threads=c.threads) as (number, place, layer):
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared(b_tile, p.dtype)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.stored_dtype)
            acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
            # Copies that are not TMA's compute addresses in the type of what they are indexed by.
            entry = (layer if tma and target.device.tma else T.cast(layer, "int64")) * GRID_HEIGHT + place
            # Variables, since TileLang would write the divisions again wherever their results are used.
            tile = tile_at(number, row_tiles, column_tiles)
            row_tile = T.alloc_var("int32", tile[0])
            column_tile = T.alloc_var("int32", tile[1])
            row, column = row_tile * c.block_m, column_tile * c.block_n
            T.clear(acc)
            steps = T.ceildiv(k, c.block_k)
            # TileLang pipelines copies that are not TMA's over a known number of steps only.
            for step in T.serial(steps) if p.k is None else T.Pipelined(steps, num_stages=c.stages):
                depth = step * c.block_k
                T.copy(a[entry, row, depth], a_shared, disable_tma=not tma)
                if transposed:
                    T.copy(b[entry, column, depth], b_shared, disable_tma=not tma)
                else:
                    T.copy(b[entry, depth, column], b_shared, disable_tma=not tma)
                T.gemm(a_shared, b_shared, acc, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
            admit_next_kernel(target)
            T.copy(acc, out_shared)
            T.copy(out_shared, out[entry, row, column], disable_tma=not stores_by_tma)

    return batched_matmul


def _cpu(p: BatchedMatmulParameters, c: BatchedMatmulConfiguration) -> PrimFunc:
    types = tensor_types(BatchedMatmul(), p, storage=storage_dtype)
    width = c.block_n if p.n is None else min(c.block_n, p.n)

    def products(a: Buffer, entry: PrimExpr, rows: list[PrimExpr], b: Buffer, at: Place) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            right = b[entry, at(j), depth] if p.layout == "nk" else b[entry, depth, at(j)]
            return to_float32(a[entry, rows[i], depth], p.dtype) * to_float32(right, p.dtype)

        return product

    def columns(tile: PrimExpr, n: PrimExpr) -> Place:
        """Which column of the product each one of a tile is. The last tile overlaps the one before, or, where there may
        be fewer columns than it has, repeats the last: that stores equal values twice."""
        known = p.n
        if known is None:
            return lambda j: T.min(tile * width + j, n - 1)
        return lambda j: T.min(tile * width, known - width) + j

    @T.prim_func
    def batched_matmul(a: types.a, b: types.b, out: types.out) -> None:
        batch, m, n = out.shape
        k = a.shape[2]
        with T.Kernel(T.ceildiv(n, width), T.ceildiv(m, c.block_m), batch) as (column_tile, row_tile, entry):
            rows = [T.min(row_tile * c.block_m + i, m - 1) for i in range(c.block_m)]
            at = columns(column_tile, n)
            sums = register_tile(replace(c, block_n=width), k, products(a, entry, rows, b, at))
            for row, row_sums in zip(rows, sums, strict=True):
                for j in T.serial(width):
                    out[entry, row, at(j)] = from_float32(row_sums[j, 0], p.stored_dtype)

    return batched_matmul
