"""SwiGLU for the CPU: loops that a C++ compiler vectorizes, over the tiles that share a scale."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels import cpu_math
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.quantization import scale_of, swiglu_types, tile_shape


def tiles(p: SwiGLUParameters) -> PrimFunc:
    """A scale per token, group or block, or none at all: one tile after the other, its values kept in between."""
    types = swiglu_types(p, storage_dtype)
    rows, columns = tile_shape(p)
    tiles_per_row = -(-p.channels // columns)

    @T.prim_func
    def swiglu(
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        out: types.out,
        scales: types.scales,
    ) -> None:
        tokens = out.shape[0]
        with T.Kernel(T.ceildiv(tokens, rows), tiles_per_row) as (row_tile, column_tile):
            num_rows = T.min(rows, tokens - row_tile * rows)
            num_columns = T.min(columns, p.channels - column_tile * columns)
            first_channel = column_tile * columns
            values = T.alloc_local((rows, columns), "float32")
            largest = T.alloc_local((1,), "int32")
            scale = T.alloc_local((1,), "float32")
            largest[0] = 0
            for r in T.serial(num_rows):
                for j in T.serial(num_columns):
                    values[r, j] = _value(p, gate, up, gate_up, row_tile * rows + r, first_channel + j)
                if p.scale is not None:
                    for j in T.serial(num_columns):
                        largest[0] = T.max(largest[0], _magnitude_bits(values[r, j]))
            if p.scale is None:
                for j in T.serial(num_columns):
                    out[row_tile, j] = from_float32(values[0, j], p.dtype)
            else:
                scale[0] = scale_of(p, T.reinterpret(largest[0], "float32"))
                if p.scale == "token":
                    scales[row_tile] = scale[0]
                else:
                    scales[row_tile, column_tile] = scale[0]
                for r in T.serial(num_rows):
                    for j in T.serial(num_columns):
                        quotient = values[r, j] / scale[0]
                        out[row_tile * rows + r, first_channel + j] = from_float32(quotient, p.quantized_dtype)

    return swiglu


def channels(p: SwiGLUParameters) -> PrimFunc:
    """A scale per channel: the tokens once for the largest magnitudes, and once more to quantize."""
    types = swiglu_types(p, storage_dtype)

    @T.prim_func
    def swiglu(
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        out: types.out,
        scales: types.scales,
        partial_amax: T.Tensor((1, p.channels), "float32"),
    ) -> None:
        tokens = out.shape[0]
        with T.Kernel(1):
            for j in T.serial(p.channels):
                partial_amax[0, j] = 0.0
            for token in T.serial(tokens):
                for j in T.serial(p.channels):
                    value = _value(p, gate, up, gate_up, token, j)
                    largest = T.max(T.reinterpret(partial_amax[0, j], "int32"), _magnitude_bits(value))
                    partial_amax[0, j] = T.reinterpret(largest, "float32")
            for j in T.serial(p.channels):
                scales[j] = scale_of(p, partial_amax[0, j])
            for token in T.serial(tokens):
                for j in T.serial(p.channels):
                    quotient = _value(p, gate, up, gate_up, token, j) / scales[j]
                    out[token, j] = from_float32(quotient, p.quantized_dtype)

    return swiglu


@T.macro
def _value(
    p: SwiGLUParameters,
    gate: Buffer | None,
    up: Buffer | None,
    gate_up: Buffer | None,
    token: PrimExpr,
    channel: PrimExpr,
) -> PrimExpr:
    g = to_float32(gate_up[token, channel] if p.packed else gate[token, channel], p.dtype)
    u = to_float32(gate_up[token, p.channels + channel] if p.packed else up[token, channel], p.dtype)
    return g / (1.0 + cpu_math.exp(-g)) * u


def _magnitude_bits(value: PrimExpr) -> PrimExpr:
    """The bits of ``abs(value)``: integers that order as the magnitudes, NaN last, and that compilers vectorize."""
    return T.reinterpret(value, "int32") & 0x7FFFFFFF
