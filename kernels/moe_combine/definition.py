"""The weighted sum of a token's rows in TileLang."""

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.moe_combine.spec import MoeCombine, MoeCombineConfiguration, MoeCombineParameters, vector_width
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: MoeCombineParameters, configuration: MoeCombineConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``rows``, ``positions``, ``weights`` if there are any, and ``out``."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _within(p: MoeCombineParameters, position: PrimExpr, copies: PrimExpr) -> PrimExpr:
    """``position`` as the index of one of the rows, of which there is at least one."""
    last = T.cast(copies - 1, p.indices_dtype)
    return T.cast(T.max(T.min(position, last), T.cast(0, p.indices_dtype)), "int32")


def _cuda(p: MoeCombineParameters, c: MoeCombineConfiguration) -> PrimFunc:
    types = tensor_types(MoeCombine(), p, ("weights",))
    width = vector_width(p)
    per_block = c.threads * width

    @T.prim_func
    def moe_combine(rows: types.rows, positions: types.positions, weights: types.weights, out: types.out):
        copies, tokens = rows.shape[0], out.shape[0]
        with T.Kernel(T.max(tokens, 1), T.ceildiv(p.channels, per_block), threads=c.threads) as (token, part):
            channel = part * per_block + T.get_thread_binding() * width
            at = T.alloc_local((p.top_k,), "int32")
            loaded = T.alloc_local((p.top_k * width,), p.dtype)
            sums = T.alloc_local((width,), "float32")
            if token < tokens and channel < p.channels and copies > 0:
                # All rows are loaded before any is added, so that the loads are in flight together.
                for k in T.unroll(p.top_k):
                    at[k] = _within(p, positions[token, k], copies)
                for k in T.unroll(p.top_k):
                    for e in T.vectorized(width):
                        loaded[k * width + e] = rows[at[k], channel + e]
                for e in T.unroll(width):
                    sums[e] = 0.0
                for k in T.unroll(p.top_k):
                    factor = T.float32(1.0) if p.weight_dtype is None else T.cast(weights[at[k]], "float32")
                    for e in T.unroll(width):
                        sums[e] += T.cast(loaded[k * width + e], "float32") * factor
                for e in T.vectorized(width):
                    out[token, channel + e] = T.cast(sums[e], p.dtype)

    return moe_combine


def _cpu(p: MoeCombineParameters) -> PrimFunc:
    types = tensor_types(MoeCombine(), p, ("weights",), storage_dtype)

    @T.prim_func
    def moe_combine(rows: types.rows, positions: types.positions, weights: types.weights, out: types.out):
        copies = rows.shape[0]
        with T.Kernel(out.shape[0]) as token:
            sums = T.alloc_local((p.channels,), "float32")
            for j in T.serial(p.channels):
                sums[j] = 0.0
            if copies > 0:
                for k in T.serial(p.top_k):
                    at = _within(p, positions[token, k], copies)
                    factor = T.float32(1.0) if p.weight_dtype is None else to_float32(weights[at], p.weight_dtype)
                    for j in T.serial(p.channels):
                        sums[j] += to_float32(rows[at, j], p.dtype) * factor
            for j in T.serial(p.channels):
                out[token, j] = from_float32(sums[j], p.dtype)

    return moe_combine
