"""The grouped matrix product in TileLang, for tensor cores and for the CPU."""

import dataclasses

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.gated_matmul.accumulators import accumulators, clear, multiply, separate
from tkc.kernels.grouped_matmul import persistent
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmul, GroupedMatmulConfiguration
from tkc.kernels.grouped_matmul.tiles import end, find_group, first_row, slots, start
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import loadable_by_tma, shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.raster import tile_at
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: GroupedMatmulParameters, configuration: GroupedMatmulConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``rows`` if it gathers, ``b``, ``offsets`` and ``out``."""
    if target.is_cuda:
        if configuration.blocks:
            return persistent.define(parameters, configuration)
        return _cuda(parameters, configuration, target)
    columns = min(configuration.block_n, parameters.n)
    return _cpu(parameters, dataclasses.replace(configuration, block_n=columns))


def _cuda(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration, target: Target) -> PrimFunc:
    types = tensor_types(GroupedMatmul(), p)
    transposed = p.weight_layout == "gnk"
    tma = loadable_by_tma((p.k, p.weight_shape[-1]))
    warp_specialized = tma and target.compute_capability >= 90
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)
    column_tiles = -(-p.n // c.block_n)

    @T.prim_func
    def grouped_matmul(
        a: types.a,
        b: types.b,
        offsets: types.offsets,
        out: types.out,
    ) -> None:
        if p.gated is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = out.shape[0]
        with T.Kernel(column_tiles * slots(p, c.block_m, m), threads=c.threads) as block:
            slot, column_tile = tile_at(block, slots(p, c.block_m, m), column_tiles)
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.dtype)
            if p.gated is None:
                acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
                b_shared = T.alloc_shared(b_tile, p.dtype)
                tiles = ((b_shared, 0),)
            else:
                sums = accumulators(c, transposed, p.dtype)
                tiles = ((sums.gate, 0), (sums.up, p.n))  # type: ignore[assignment]  # two instead of one
            bounds = T.alloc_local((2,), "int32")
            find_group(p, offsets, c.block_m, slot, bounds)
            group = bounds[0]
            row = first_row(offsets, group, c.block_m, slot)
            past = end(p, offsets, group, m)
            column = column_tile * c.block_n
            live = T.And(group < p.groups, row < past)
            steps = T.ceildiv(p.k, c.block_k)
            if p.gated is None:
                T.clear(acc)
            else:
                clear(sums)
            # Warp specialization takes no loop under a condition, and the cp.async pipeline none of unknown length.
            if warp_specialized or live:
                extent = T.if_then_else(live, steps, 0) if warp_specialized else steps
                for step in T.Pipelined(extent, num_stages=c.stages):
                    depth = step * c.block_k
                    T.copy(a[row, depth], a_shared, disable_tma=not tma)
                    for tile, first in tiles:
                        if transposed:
                            T.copy(b[group, first + column, depth], tile, disable_tma=not tma)
                        else:
                            T.copy(b[group, depth, first + column], tile, disable_tma=not tma)
                    if p.gated is None:
                        T.gemm(a_shared, b_shared, acc, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
                    else:
                        multiply(a_shared, sums, transposed)
            if p.gated is None:
                T.copy(acc, out_shared)
            else:
                separate(sums)
                for i, j in T.Parallel(c.block_m, c.block_n):
                    sums.ups[i, j] = activated(sums.gates[i, j], p.gated) * sums.ups[i, j]
                T.copy(sums.ups, out_shared)
            if row + c.block_m <= past:
                T.copy(out_shared, out[row, column])
            else:
                for i, j in T.Parallel(c.block_m, c.block_n):
                    if row + i < past:
                        out[row + i, column + j] = out_shared[i, j]

    return grouped_matmul


def _cpu(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration) -> PrimFunc:
    types = tensor_types(GroupedMatmul(), p, ("rows",), storage_dtype)
    stored = storage_dtype(p.dtype)

    def products(a: Buffer, rows: list[PrimExpr], b: Buffer, group: PrimExpr, column: PrimExpr) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            weight = b[group, column + j, depth] if p.weight_layout == "gnk" else b[group, depth, column + j]
            return to_float32(a[rows[i], depth], p.dtype) * to_float32(weight, p.dtype)

        return product

    @T.prim_func
    def grouped_matmul(
        a: types.a,
        rows: types.rows,
        b: types.b,
        offsets: types.offsets,
        out: types.out,
    ) -> None:
        tokens, m = a.shape[0], out.shape[0]
        # Where there is none to gather, no row is of any group.
        grouped = m if p.rows is None else T.if_then_else(tokens > 0, m, 0)
        with T.Kernel(p.groups) as group:
            begin = T.min(start(offsets, group), grouped)
            past = T.min(offsets[group], grouped)
            numbers = T.alloc_local((c.block_m,), "int32")
            for column_tile, row_tile in T.grid(T.ceildiv(p.n, c.block_n), T.ceildiv(past - begin, c.block_m)):
                # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
                column = T.min(column_tile * c.block_n, p.n - c.block_n)
                targets = [T.min(begin + row_tile * c.block_m + i, past - 1) for i in range(c.block_m)]
                for row in targets:
                    T.assume(T.And(row >= 0, row < m))
                sources = targets
                if p.rows is not None:
                    # Read and clamped once, and not checked again: at each use of a value, that takes half the time.
                    for i, row in enumerate(targets):
                        numbers[i] = T.max(T.min(T.cast(rows[row], "int32"), tokens - 1), 0)
                        T.assume(T.And(numbers[i] >= 0, numbers[i] < tokens))
                    sources = [numbers[i] for i in range(c.block_m)]
                sums = register_tile(c, p.k, products(a, sources, b, group, column))
                if p.gated is None:
                    for row, row_sums in zip(targets, sums, strict=True):
                        for j in T.serial(c.block_n):
                            out[row, column + j] = from_float32(row_sums[j, 0], p.dtype)
                else:
                    ups = register_tile(c, p.k, products(a, sources, b, group, p.n + column))
                    for row, row_gates, row_ups in zip(targets, sums, ups, strict=True):
                        for j in T.serial(c.block_n):
                            x = activated(row_gates[j, 0], p.gated, exact=True) * row_ups[j, 0]
                            out[row, column + j] = from_float32(x, p.dtype)
            if group == p.groups - 1:
                for i, j in T.grid(m - past, p.n):
                    out[past + i, j] = T.cast(0, stored)

    return grouped_matmul
