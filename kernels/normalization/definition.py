"""Normalization in TileLang: a token's values stay in registers between their statistics and the result."""

import tilelang.language as T
from tvm.tirx import PrimFunc

from tkc.kernels.lanes import sum_of_lanes
from tkc.kernels.moe_combine.weighted_sum import add_rows, add_whole_rows, find_rows
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.normalization.spec import Normalization, NormalizationConfiguration, vector_width
from tkc.kernels.target import WARP, Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: NormalizationParameters, configuration: NormalizationConfiguration, target: Target) -> PrimFunc:
    """The kernel over the inputs and outputs that the spec lists."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


_OPTIONAL = ("x", "rows", "positions", "weights", "residual", "weight", "bias", "sum")


def _cuda(p: NormalizationParameters, c: NormalizationConfiguration) -> PrimFunc:
    types = tensor_types(Normalization(), p, _OPTIONAL)
    width = vector_width(p)
    per_lane = -(-p.channels // (width * c.lanes))
    at_once = c.threads // c.lanes
    num_rows = 1 if p.combined is None else p.combined.top_k
    warps = max(c.lanes // WARP, 1)

    @T.prim_func
    def normalization(
        x: types.x,
        rows: types.rows,
        positions: types.positions,
        weights: types.weights,
        residual: types.residual,
        weight: types.weight,
        bias: types.bias,
        out: types.out,
        sum: types.sum,
    ) -> None:
        tokens = out.shape[0]
        with T.Kernel(T.max(T.ceildiv(tokens, at_once), 1), threads=c.threads) as block:
            thread = T.get_thread_binding()
            lane = thread % c.lanes
            token = block * at_once + thread // c.lanes
            at = T.alloc_local((num_rows,), "int32")
            loaded = T.alloc_local((per_lane * width,), p.dtype)
            added = T.alloc_local((per_lane * width,), p.dtype)
            values = T.alloc_local((per_lane * width,), "float32")
            total = T.alloc_local((1,), "float32")
            warp_totals = T.alloc_shared((2, at_once, warps), "float32")
            # All loads come first, so that they are in flight together.
            if p.combined is not None and token < tokens and rows.shape[0] > 0:
                find_rows(p.combined, rows, positions, token, at)
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                if token < tokens and channel < p.channels:
                    if p.combined is None:
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
                    if p.combined is None:
                        for e in T.unroll(width):
                            values[i * width + e] = T.cast(loaded[i * width + e], "float32")
                    elif rows.shape[0] > 0:
                        add_rows(p.combined, rows, weights, at, token, channel, values, i * width)
                    if p.residual:
                        for e in T.unroll(width):
                            values[i * width + e] += T.cast(added[i * width + e], "float32")
                    if p.residual or p.combined is not None:
                        for e in T.unroll(width):
                            values[i * width + e] = T.cast(T.cast(values[i * width + e], p.dtype), "float32")
                    if p.keeps_sum:
                        for e in T.vectorized(width):
                            sum[token, channel + e] = T.cast(values[i * width + e], p.dtype)
            if p.kind == "layer":
                total[0] = 0.0
                for i in T.unroll(per_lane * width):
                    total[0] += values[i]
                sum_of_lanes(c.lanes, total, warp_totals, 0)
                mean = total[0] / p.channels
                for i in T.unroll(per_lane):
                    # What lies past the channels stays zero.
                    if (i * c.lanes + lane) * width < p.channels:
                        for e in T.unroll(width):
                            values[i * width + e] -= mean
            total[0] = 0.0
            for i in T.unroll(per_lane * width):
                total[0] += values[i] * values[i]
            sum_of_lanes(c.lanes, total, warp_totals, 1)
            factor = T.rsqrt(total[0] / p.channels + T.float32(p.epsilon))
            for i in T.unroll(per_lane):
                channel = (i * c.lanes + lane) * width
                if token < tokens and channel < p.channels:
                    for e in T.unroll(width):
                        values[i * width + e] *= factor
                    if p.weight:
                        for e in T.vectorized(width):
                            values[i * width + e] *= T.cast(weight[channel + e], "float32")
                    if p.bias:
                        for e in T.vectorized(width):
                            values[i * width + e] += T.cast(bias[channel + e], "float32")
                    for e in T.vectorized(width):
                        out[token, channel + e] = T.cast(values[i * width + e], p.dtype)

    return normalization


def _cpu(p: NormalizationParameters) -> PrimFunc:
    types = tensor_types(Normalization(), p, _OPTIONAL, storage_dtype)
    parameter_dtype = p.parameter_dtype or p.dtype

    @T.prim_func
    def normalization(
        x: types.x,
        rows: types.rows,
        positions: types.positions,
        weights: types.weights,
        residual: types.residual,
        weight: types.weight,
        bias: types.bias,
        out: types.out,
        sum: types.sum,
    ) -> None:
        with T.Kernel(out.shape[0]) as token:
            values = T.alloc_local((p.channels,), "float32")
            total = T.alloc_local((1,), "float32")
            if p.combined is None:
                for j in T.serial(p.channels):
                    values[j] = to_float32(x[token, j], p.dtype)
            else:
                add_whole_rows(p.combined, rows, positions, weights, token, values)
            if p.residual:
                for j in T.serial(p.channels):
                    values[j] += to_float32(residual[token, j], p.dtype)
            if p.residual or p.combined is not None:
                for j in T.serial(p.channels):
                    values[j] = to_float32(from_float32(values[j], p.dtype), p.dtype)
            if p.keeps_sum:
                for j in T.serial(p.channels):
                    sum[token, j] = from_float32(values[j], p.dtype)
            if p.kind == "layer":
                total[0] = 0.0
                for j in T.serial(p.channels):
                    total[0] += values[j]
                mean = total[0] / p.channels
                for j in T.serial(p.channels):
                    values[j] -= mean
            total[0] = 0.0
            for j in T.serial(p.channels):
                total[0] += values[j] * values[j]
            factor = 1.0 / T.sqrt(total[0] / p.channels + T.float32(p.epsilon))
            for j in T.serial(p.channels):
                values[j] *= factor
                if p.weight:
                    values[j] *= to_float32(weight[j], parameter_dtype)
                if p.bias:
                    values[j] += to_float32(bias[j], parameter_dtype)
                out[token, j] = from_float32(values[j], p.dtype)

    return normalization
