"""The grouped matrix product in TileLang, for tensor cores and for the CPU."""

import dataclasses

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.gated_matmul.accumulators import FAST_ACTIVATION, accumulators, clear, multiply, separate
from tkc.kernels.grouped_matmul.spec import GroupedMatmulConfiguration, GroupedMatmulParameters
from tkc.kernels.matmul.epilogue import activated
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import loadable_by_tma, shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.target import Target


def define(parameters: GroupedMatmulParameters, configuration: GroupedMatmulConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``offsets`` and ``out``."""
    if target.is_cuda:
        return _cuda(parameters, configuration, target)
    columns = min(configuration.block_n, parameters.n)
    return _cpu(parameters, dataclasses.replace(configuration, block_n=columns))


def _cuda(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration, target: Target) -> PrimFunc:
    m = T.dynamic("m", "int32")
    transposed = p.weight_layout == "gnk"
    tma = loadable_by_tma((p.k, p.weight_shape[-1]))
    warp_specialized = tma and target.compute_capability >= 90
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)

    def start(offsets: Buffer, group: PrimExpr) -> PrimExpr:
        return T.if_then_else(group == 0, 0, offsets[T.max(group - 1, 0)])

    def first_slot(offsets: Buffer, group: PrimExpr) -> PrimExpr:
        """The block row of a group's first tile; the next group's comes late enough for all its tiles."""
        return start(offsets, group) // c.block_m + group

    @T.prim_func
    def grouped_matmul(
        a: T.Tensor((m, p.k), p.dtype),
        b: T.Tensor(p.weight_shape, p.dtype),
        offsets: T.Tensor((p.groups,), "int32"),
        out: T.Tensor((m, p.n), p.dtype),
    ):
        if p.gated is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        with T.Kernel(T.ceildiv(p.n, c.block_n), m // c.block_m + p.groups + 1, threads=c.threads) as (
            column_tile,
            slot,
        ):
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
                tiles = ((sums.gate, 0), (sums.up, p.n))
            group = T.alloc_var("int32", 0)
            last = T.alloc_var("int32", p.groups)
            for _ in T.serial(p.groups.bit_length()):
                middle = (group + last + 1) // 2
                if first_slot(offsets, middle) <= slot:
                    group = middle
                else:
                    last = middle - 1
            row = start(offsets, group) + (slot - first_slot(offsets, group)) * c.block_m
            end = T.if_then_else(group < p.groups, offsets[T.min(group, p.groups - 1)], m)
            column = column_tile * c.block_n
            live = T.And(group < p.groups, row < end)
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
            if row + c.block_m <= end:
                T.copy(out_shared, out[row, column])
            else:
                for i, j in T.Parallel(c.block_m, c.block_n):
                    if row + i < end:
                        out[row + i, column + j] = out_shared[i, j]

    return grouped_matmul


def _cpu(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration) -> PrimFunc:
    m = T.dynamic("m", "int32")
    stored = storage_dtype(p.dtype)

    def products(a: Buffer, rows: list[PrimExpr], b: Buffer, group: PrimExpr, column: PrimExpr) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            weight = b[group, column + j, depth] if p.weight_layout == "gnk" else b[group, depth, column + j]
            return to_float32(a[rows[i], depth], p.dtype) * to_float32(weight, p.dtype)

        return product

    @T.prim_func
    def grouped_matmul(
        a: T.Tensor((m, p.k), stored),
        b: T.Tensor(p.weight_shape, stored),
        offsets: T.Tensor((p.groups,), "int32"),
        out: T.Tensor((m, p.n), stored),
    ):
        with T.Kernel(p.groups) as group:
            start = T.min(T.if_then_else(group == 0, 0, offsets[T.max(group - 1, 0)]), m)
            end = T.min(offsets[group], m)
            for column_tile, row_tile in T.grid(T.ceildiv(p.n, c.block_n), T.ceildiv(end - start, c.block_m)):
                # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
                column = T.min(column_tile * c.block_n, p.n - c.block_n)
                rows = [T.min(start + row_tile * c.block_m + i, end - 1) for i in range(c.block_m)]
                for row in rows:
                    T.assume(T.And(row >= 0, row < m))
                sums = register_tile(c, p.k, products(a, rows, b, group, column))
                if p.gated is None:
                    for row, row_sums in zip(rows, sums, strict=True):
                        for j in T.serial(c.block_n):
                            out[row, column + j] = from_float32(row_sums[j, 0], p.dtype)
                else:
                    ups = register_tile(c, p.k, products(a, rows, b, group, p.n + column))
                    for row, row_gates, row_ups in zip(rows, sums, ups, strict=True):
                        for j in T.serial(c.block_n):
                            x = activated(row_gates[j, 0], p.gated) * row_ups[j, 0]
                            out[row, column + j] = from_float32(x, p.dtype)
            if group == p.groups - 1:
                for i, j in T.grid(m - end, p.n):
                    out[end + i, j] = T.cast(0, stored)

    return grouped_matmul
