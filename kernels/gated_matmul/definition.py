"""The gated matrix product in TileLang, for tensor cores and for the CPU."""

import dataclasses

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.gated_matmul.accumulators import accumulators, clear, multiply, separate
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.gated_matmul.spec import GatedMatmul, GatedMatmulConfiguration
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import loadable_by_tma, shifts_registers
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.raster import RASTER_BAND
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types

_OPTIONAL = ("gate", "up", "gate_up", "gate_bias", "up_bias", "gate_up_bias")


def define(parameters: GatedMatmulParameters, configuration: GatedMatmulConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``a``, the weights and biases (two each, or one packed), and ``out``."""
    if target.is_cuda:
        return _cuda(parameters, configuration, target)
    columns = min(configuration.block_n, parameters.n)
    return _cpu(parameters, dataclasses.replace(configuration, block_n=columns))


def _cuda(p: GatedMatmulParameters, c: GatedMatmulConfiguration, target: Target) -> PrimFunc:
    types = tensor_types(GatedMatmul(), p, _OPTIONAL)
    transposed = p.weight_layout == "nk"
    up_column = p.n if p.packed else 0  # where the second half of a packed tensor begins
    tma = loadable_by_tma((p.k, p.k if transposed else p.n + up_column))

    @T.prim_func
    def gated_matmul(
        a: types.a,
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        gate_bias: types.gate_bias,
        up_bias: types.up_bias,
        gate_up_bias: types.gate_up_bias,
        out: types.out,
    ) -> None:
        T.annotate_compile_flags(FAST_ACTIVATION)
        m = a.shape[0]
        with T.Kernel(T.ceildiv(m, c.block_m), T.ceildiv(p.n, c.block_n), threads=c.threads) as (row_tile, column_tile):
            T.use_swizzle(RASTER_BAND, order="column")
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            gate_weight, up_weight = (gate_up, gate_up) if p.packed else (gate, up)
            gate_offset, up_offset = (gate_up_bias, gate_up_bias) if p.packed else (gate_bias, up_bias)
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.dtype)
            sums = accumulators(c, transposed, p.dtype)
            row, column = row_tile * c.block_m, column_tile * c.block_n
            clear(sums)
            for step in T.Pipelined(T.ceildiv(p.k, c.block_k), num_stages=c.stages):
                depth = step * c.block_k
                T.copy(a[row, depth], a_shared, disable_tma=not tma)
                if transposed:
                    T.copy(gate_weight[column, depth], sums.gate, disable_tma=not tma)
                    T.copy(up_weight[up_column + column, depth], sums.up, disable_tma=not tma)
                else:
                    T.copy(gate_weight[depth, column], sums.gate, disable_tma=not tma)
                    T.copy(up_weight[depth, up_column + column], sums.up, disable_tma=not tma)
                multiply(a_shared, sums, transposed)
            separate(sums)
            for i, j in T.Parallel(c.block_m, c.block_n):
                x, y = sums.gates[i, j], sums.ups[i, j]
                if p.bias:
                    x = x + T.cast(gate_offset[column + j], "float32")
                    y = y + T.cast(up_offset[up_column + column + j], "float32")
                sums.ups[i, j] = activated(x, p.activation) * y
            T.copy(sums.ups, out_shared)
            T.copy(out_shared, out[row, column])

    return gated_matmul


def _cpu(p: GatedMatmulParameters, c: GatedMatmulConfiguration) -> PrimFunc:
    types = tensor_types(GatedMatmul(), p, _OPTIONAL, storage_dtype)
    up_column = p.n if p.packed else 0

    def products(a: Buffer, rows: list[PrimExpr], weight: Buffer, column: PrimExpr) -> Product:
        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            factor = weight[column + j, depth] if p.weight_layout == "nk" else weight[depth, column + j]
            return to_float32(a[rows[i], depth], p.dtype) * to_float32(factor, p.dtype)

        return product

    def biased(total: PrimExpr, bias: Buffer | None, column: PrimExpr) -> PrimExpr:
        return total + to_float32(bias[column], p.dtype) if p.bias else total

    @T.prim_func
    def gated_matmul(
        a: types.a,
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        gate_bias: types.gate_bias,
        up_bias: types.up_bias,
        gate_up_bias: types.gate_up_bias,
        out: types.out,
    ) -> None:
        m = a.shape[0]
        gate_weight, up_weight = (gate_up, gate_up) if p.packed else (gate, up)
        gate_offset, up_offset = (gate_up_bias, gate_up_bias) if p.packed else (gate_bias, up_bias)
        with T.Kernel(T.ceildiv(p.n, c.block_n), T.ceildiv(m, c.block_m)) as (column_tile, row_tile):
            # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
            column = T.min(column_tile * c.block_n, p.n - c.block_n)
            rows = [T.min(row_tile * c.block_m + i, m - 1) for i in range(c.block_m)]
            gates = register_tile(c, p.k, products(a, rows, gate_weight, column))
            ups = register_tile(c, p.k, products(a, rows, up_weight, up_column + column))
            for row, row_gates, row_ups in zip(rows, gates, ups, strict=True):
                for j in T.serial(c.block_n):
                    x = activated(biased(row_gates[j, 0], gate_offset, column + j), p.activation, exact=True)
                    y = x * biased(row_ups[j, 0], up_offset, up_column + column + j)
                    out[row, column + j] = from_float32(y, p.dtype)

    return gated_matmul
