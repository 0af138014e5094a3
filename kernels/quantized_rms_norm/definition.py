"""RMS normalization and FP8 quantization in TileLang: a token's values stay in registers from the loads to the stores.

Magnitudes are compared as integers, the bits of a float32 without its sign. These order as the numbers do, subnormal
ones too, with NaN above infinity, so that one maximum keeps NaN on both targets.
"""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.fp8 import QUANTIZATION_BLOCK, SMALLEST_AMAX
from tkc.kernels.fp8_scales import fp8_scale
from tkc.kernels.lanes import sum_of_lanes
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.quantized_rms_norm.spec import QuantizedRMSNorm, QuantizedRMSNormConfiguration, vector_width
from tkc.kernels.target import WARP, Target
from tkc.kernels.tensor_types import tensor_types

_OPTIONAL = ("residual", "weight", "static_scale", "scales", "sum")
_SMALLEST_NORMAL, _LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127


def define(
    parameters: QuantizedRMSNormParameters, configuration: QuantizedRMSNormConfiguration, target: Target
) -> PrimFunc:
    """The kernel over the inputs and outputs that the spec lists."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _cuda(p: QuantizedRMSNormParameters, c: QuantizedRMSNormConfiguration) -> PrimFunc:
    types = tensor_types(QuantizedRMSNorm(), p, _OPTIONAL)
    width = vector_width(p)
    per_lane = -(-p.channels // (width * c.lanes))
    at_once = c.threads // c.lanes
    warps = max(c.lanes // WARP, 1)
    group_lanes = QUANTIZATION_BLOCK // width

    @T.prim_func
    def quantized_rms_norm(
        x: types.x,
        residual: types.residual,
        weight: types.weight,
        static_scale: types.static_scale,
        out: types.out,
        scales: types.scales,
        sum: types.sum,
    ) -> None:
        tokens = out.shape[0]
        with T.Kernel(T.max(T.ceildiv(tokens, at_once), 1), threads=c.threads) as block:
            thread = T.get_thread_binding()
            lane = thread % c.lanes
            token = block * at_once + thread // c.lanes
            loaded = T.alloc_local((per_lane * width,), p.dtype)
            added = T.alloc_local((per_lane * width,), p.dtype)
            values = T.alloc_local((per_lane * width,), "float32")
            total = T.alloc_local((1,), "float32")
            largest = T.alloc_local((1,), "int32")
            scale = T.alloc_local((2,), "float32")  # the scale, and its reciprocal
            warp_totals = T.alloc_shared((1, at_once, warps), "float32")
            warp_largest = T.alloc_shared((at_once, warps), "int32")
            # All loads come first, so that they are in flight together.
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                if token < tokens and channel < p.channels:
                    for e in T.vectorized(width):
                        loaded[i * width + e] = x[token, channel + e]
                    if p.residual:
                        for e in T.vectorized(width):
                            added[i * width + e] = residual[token, channel + e]
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                for e in T.unroll(width):
                    values[i * width + e] = 0.0
                if token < tokens and channel < p.channels:
                    for e in T.unroll(width):
                        values[i * width + e] = T.cast(loaded[i * width + e], "float32")
                    if p.residual:
                        for e in T.unroll(width):
                            values[i * width + e] += T.cast(added[i * width + e], "float32")
                        for e in T.unroll(width):
                            values[i * width + e] = T.cast(T.cast(values[i * width + e], p.dtype), "float32")
                    if p.keeps_sum:
                        for e in T.vectorized(width):
                            sum[token, channel + e] = T.cast(values[i * width + e], p.dtype)
            total[0] = 0.0
            for i in T.unroll(per_lane * width):
                total[0] += values[i] * values[i]
            sum_of_lanes(c.lanes, total, warp_totals, 0)
            factor = T.rsqrt(total[0] / p.channels + T.float32(p.epsilon))
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                # What lies past the channels stays zero, also where the factor is NaN.
                if token < tokens and channel < p.channels:
                    for e in T.unroll(width):
                        values[i * width + e] *= factor
                    if p.weight_dtype is not None:
                        for e in T.vectorized(width):
                            values[i * width + e] *= _weight(p, T.cast(weight[channel + e], "float32"))
            if p.scale == "tensor":
                scale[0] = static_scale[0]
                scale[1] = 1.0 / scale[0]
            if p.scale == "token":
                largest[0] = 0
                for i in T.unroll(per_lane * width):
                    largest[0] = T.max(largest[0], _magnitude_bits(values[i]))
                _largest_of_lanes(c.lanes, largest, warp_largest)
                _set_scale(p, largest, scale)
                if token < tokens and lane == 0:
                    scales[token] = scale[0]
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                if p.scale == "group":
                    largest[0] = 0
                    for e in T.unroll(width):
                        largest[0] = T.max(largest[0], _magnitude_bits(values[i * width + e]))
                    for step in T.unroll(group_lanes.bit_length() - 1):
                        largest[0] = T.max(largest[0], T.shfl_xor(largest[0], 1 << step))
                    _set_scale(p, largest, scale)
                    if token < tokens and channel < p.channels and lane % group_lanes == 0:
                        scales[token, channel // QUANTIZATION_BLOCK] = scale[0]
                if token < tokens and channel < p.channels:
                    for e in T.unroll(width):
                        values[i * width + e] = _scaled(p, values[i * width + e], scale[0], scale[1])
                    for e in T.vectorized(width):
                        out[token, channel + e] = T.cast(values[i * width + e], p.quantized_dtype)

    return quantized_rms_norm


@T.macro
def _largest_of_lanes(lanes: int, largest: Buffer, warp_largest: Buffer) -> None:
    """Makes ``largest[0]`` the largest over the lanes of a token; all threads of the block call it."""
    for step in T.unroll(min(lanes, WARP).bit_length() - 1):
        largest[0] = T.max(largest[0], T.shfl_xor(largest[0], 1 << step))
    if lanes > WARP:
        thread = T.get_thread_binding()
        row = thread // lanes
        if thread % WARP == 0:
            warp_largest[row, thread % lanes // WARP] = largest[0]
        T.sync_threads()
        for warp in T.unroll(lanes // WARP):
            largest[0] = T.max(largest[0], warp_largest[row, warp])


@T.macro
def _set_scale(p: QuantizedRMSNormParameters, largest: Buffer, scale: Buffer) -> None:
    """The dynamic scale for values of at most ``largest`` in magnitude, and its reciprocal."""
    amax = T.reinterpret(largest[0], "float32")
    scale[0] = fp8_scale(amax, p.quantized_dtype, p.minimum_amax, p.power_of_two_scales)
    scale[1] = 1.0 / scale[0]


def _scaled(p: QuantizedRMSNormParameters, value: PrimExpr, scale: PrimExpr, inverse: PrimExpr) -> PrimExpr:
    """``value / scale``, by its ``inverse`` where that is a normal number: an exact division is twenty instructions."""
    if p.scale == "tensor" and p.reciprocal:
        return value * scale
    if p.scale != "tensor" and p.minimum_amax >= SMALLEST_AMAX:
        return value * inverse
    size = T.abs(inverse)
    is_normal = T.And(size >= T.float32(_SMALLEST_NORMAL), size <= T.float32(_LARGEST))
    return T.if_then_else(is_normal, value * inverse, value / scale)


def _weight(p: QuantizedRMSNormParameters, stored: PrimExpr) -> PrimExpr:
    return T.float32(1.0) + stored if p.weight_offset else stored


def _magnitude_bits(value: PrimExpr) -> PrimExpr:
    return T.reinterpret(value, "int32") & 0x7FFFFFFF


def _cpu(p: QuantizedRMSNormParameters) -> PrimFunc:
    types = tensor_types(QuantizedRMSNorm(), p, _OPTIONAL, storage_dtype)
    weight_dtype = p.weight_dtype or p.dtype
    shared = QUANTIZATION_BLOCK if p.scale == "group" else p.channels

    @T.prim_func
    def quantized_rms_norm(
        x: types.x,
        residual: types.residual,
        weight: types.weight,
        static_scale: types.static_scale,
        out: types.out,
        scales: types.scales,
        sum: types.sum,
    ) -> None:
        # TileLang's C code loads what it reinterprets once in a scope, and misses a store in between. So no element is
        # reinterpreted both before and after it is stored anew.
        with T.Kernel(out.shape[0]) as token:
            values = T.alloc_local((p.channels,), "float32")
            normalized = T.alloc_local((p.channels,), "float32")
            total = T.alloc_local((1,), "float32")
            largest = T.alloc_local((1,), "float32")
            scale = T.alloc_local((1,), "float32")
            for j in T.serial(p.channels):
                values[j] = to_float32(x[token, j], p.dtype)
            if p.residual:
                for j in T.serial(p.channels):
                    rounded = from_float32(values[j] + to_float32(residual[token, j], p.dtype), p.dtype)
                    if p.keeps_sum:
                        sum[token, j] = rounded
                    values[j] = to_float32(rounded, p.dtype)
            total[0] = 0.0
            for j in T.serial(p.channels):
                total[0] += values[j] * values[j]
            factor = 1.0 / T.sqrt(total[0] / p.channels + T.float32(p.epsilon))
            for j in T.serial(p.channels):
                normalized[j] = values[j] * factor
                if p.weight_dtype is not None:
                    normalized[j] *= _weight(p, to_float32(weight[j], weight_dtype))
            for part in T.serial(p.channels // shared):
                if p.scale == "tensor":
                    scale[0] = static_scale[0]
                else:
                    largest[0] = 0.0
                    for j in T.serial(shared):
                        bits = T.max(T.reinterpret(largest[0], "int32"), _magnitude_bits(normalized[part * shared + j]))
                        largest[0] = T.reinterpret(bits, "float32")
                    scale[0] = fp8_scale(largest[0], p.quantized_dtype, p.minimum_amax, p.power_of_two_scales)
                    if p.scale == "group":
                        scales[token, part] = scale[0]
                    else:
                        scales[token] = scale[0]
                for j in T.serial(shared):
                    value = normalized[part * shared + j]
                    quotient = value * scale[0] if p.reciprocal else value / scale[0]
                    out[token, part * shared + j] = from_float32(quotient, p.quantized_dtype)

    return quantized_rms_norm
