"""The weighted sum of each token's rows in TileLang."""

import tilelang.language as T
from tvm.tirx import PrimFunc

from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_combine.spec import MoeCombine, MoeCombineConfiguration, vector_width
from tkc.kernels.moe_combine.weighted_sum import add_rows, add_whole_rows, find_rows
from tkc.kernels.narrow_floats import from_float32, storage_dtype
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: MoeCombineParameters, configuration: MoeCombineConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``rows``, ``positions``, ``weights`` if there are any, and ``out``."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _cuda(p: MoeCombineParameters, c: MoeCombineConfiguration) -> PrimFunc:
    types = tensor_types(MoeCombine(), p, ("weights",))
    width = vector_width(p)
    per_block = c.threads * width

    @T.prim_func
    def moe_combine(rows: types.rows, positions: types.positions, weights: types.weights, out: types.out) -> None:
        tokens = out.shape[0]
        with T.Kernel(T.max(tokens, 1), T.ceildiv(p.channels, per_block), threads=c.threads) as (token, part):
            channel = part * per_block + T.get_thread_binding() * width
            at = T.alloc_local((p.top_k,), "int32")
            sums = T.alloc_local((width,), "float32")
            if token < tokens and channel < p.channels:
                if rows.shape[0] > 0:
                    find_rows(p, rows, positions, token, at)
                    add_rows(p, rows, weights, at, token, channel, sums, 0)
                else:
                    for e in T.unroll(width):
                        sums[e] = 0.0
                for e in T.vectorized(width):
                    out[token, channel + e] = T.cast(sums[e], p.dtype)

    return moe_combine


def _cpu(p: MoeCombineParameters) -> PrimFunc:
    types = tensor_types(MoeCombine(), p, ("weights",), storage_dtype)

    @T.prim_func
    def moe_combine(rows: types.rows, positions: types.positions, weights: types.weights, out: types.out) -> None:
        with T.Kernel(out.shape[0]) as token:
            sums = T.alloc_local((p.channels,), "float32")
            add_whole_rows(p, rows, positions, weights, token, sums)
            for j in T.serial(p.channels):
                out[token, j] = from_float32(sums[j], p.dtype)

    return moe_combine
