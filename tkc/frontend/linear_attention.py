"""Linear attention with a recurrent state (RetNet, GLA, DeltaNet, gated DeltaNet) as a loop over time in TensorIR.

Columns of the state, one for each element of a value, do not depend on each other: a vector of them is a task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

_LANES = 16


@dataclass(frozen=True)
class LinearAttention:
    """Heads, their sizes, and the rule by which a step changes the state ``S [d_k, d_v]``.

    ``decays`` has the state multiplied by a factor, of each head or of each of its ``d_k`` rows as ``decay`` (1 or d_k)
    says. ``corrects`` has what the key finds in the state subtracted from the value, and the difference multiplied by
    a factor, of which all heads share one or each has its own, as ``rates`` (1 or ``heads``) says.
    """

    heads: int
    query_heads: int
    keys: int
    values: int
    scale: float
    decay: int = 1
    rates: int = 1
    decays: bool = False
    corrects: bool = False


def emit_linear_attention(
    builder: relax.BlockBuilder,
    attention: LinearAttention,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    first: relax.Expr,
    decay: relax.Expr | None,
    rate: relax.Expr | None,
) -> list[relax.Var]:
    """The outputs ``[B, T, query_heads * d_v]`` and the last state ``[B, heads, d_k, d_v]``, both float32.

    Takes what :func:`linear_attention` takes.
    """
    batch, steps = query.struct_info.shape.values[:2]
    unused = relax.const(np.ones((1, 1, 1), "float32"), "float32")
    operands = [query, key, value, first, unused if decay is None else decay, unused if rate is None else rate]
    function = builder.add_func(linear_attention(attention), "linear_attention")
    shapes = [
        [batch, steps, attention.query_heads * attention.values],
        [batch, attention.heads, attention.keys, attention.values],
    ]
    results = builder.emit(relax.call_tir(function, operands, [relax.TensorStructInfo(s, "float32") for s in shapes]))
    return [builder.emit(relax.TupleGetItem(results, i)) for i in range(2)]


def linear_attention(attention: LinearAttention) -> tirx.PrimFunc:
    """The loop over time, in float32.

    Takes ``query [B, T, query_heads * d_k]``, ``key [B, T, heads * d_k]``, ``value [B, T, heads * d_v]``, the state
    ``first [B, heads, d_k, d_v]``, the factors ``decay [B, T, heads * decay]`` and ``rate [B, T, rates]``, of which
    those that the rule lacks are ``[1, 1, 1]`` and not read. Writes ``output [B, T, query_heads * d_v]`` and ``state``.
    """
    heads, keys, values = attention.heads, attention.keys, attention.values
    group, wide = attention.query_heads // heads, attention.decay > 1
    lanes = math.gcd(values, _LANES)
    parts = values // lanes
    decays, corrects = attention.decays, attention.corrects
    own_rate = attention.rates > 1

    @T.prim_func(private=True, s_tir=True)
    def linear_attention(
        query_handle: T.handle,
        key_handle: T.handle,
        value_handle: T.handle,
        first_handle: T.handle,
        decay_handle: T.handle,
        rate_handle: T.handle,
        output_handle: T.handle,
        state_handle: T.handle,
    ) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        batch, steps = T.int64(), T.int64()
        query = T.match_buffer(query_handle, (batch, steps, heads * group * keys), "float32")
        key = T.match_buffer(key_handle, (batch, steps, heads * keys), "float32")
        value = T.match_buffer(value_handle, (batch, steps, heads * values), "float32")
        first = T.match_buffer(first_handle, (batch, heads, keys, values), "float32")
        decay = T.match_buffer(
            decay_handle,
            (batch if decays else 1, steps if decays else 1, heads * attention.decay if decays else 1),
            "float32",
        )
        rate = T.match_buffer(
            rate_handle,
            (batch if corrects else 1, steps if corrects else 1, attention.rates if corrects else 1),
            "float32",
        )
        output = T.match_buffer(output_handle, (batch, steps, heads * group * values), "float32")
        state = T.match_buffer(state_handle, (batch, heads, keys, values), "float32")
        for task in T.parallel(batch * (heads * parts)):
            with T.sblock():
                total = T.sblock_alloc_buffer((_LANES,), "float32", scope="local")
                written = T.sblock_alloc_buffer((_LANES,), "float32", scope="local")
                b: T.let[T.int64] = T.truncdiv(task, heads * parts)
                h: T.let[T.int64] = T.truncdiv(T.truncmod(task, heads * parts), parts)
                column: T.let[T.int64] = T.truncmod(task, parts) * lanes
                for k in range(keys):
                    for i in T.vectorized(lanes):
                        state[b, h, k, column + i] = first[b, h, k, column + i]
                for t in T.serial(steps):
                    for i in T.vectorized(lanes):
                        written[i] = value[b, t, h * values + column + i]
                        total[i] = T.float32(0)
                    if decays or corrects:
                        for k in range(keys):
                            if decays:
                                for i in T.vectorized(lanes):
                                    state[b, h, k, column + i] = (
                                        state[b, h, k, column + i] * decay[b, t, h * keys + k if wide else h]
                                    )
                            if corrects:
                                for i in T.vectorized(lanes):
                                    total[i] = total[i] + state[b, h, k, column + i] * key[b, t, h * keys + k]
                    if corrects:
                        for i in T.vectorized(lanes):
                            written[i] = rate[b, t, h if own_rate else 0] * (written[i] - total[i])
                    for k in range(keys):
                        for i in T.vectorized(lanes):
                            state[b, h, k, column + i] = (
                                state[b, h, k, column + i] + key[b, t, h * keys + k] * written[i]
                            )
                    for q in range(group):
                        for i in T.vectorized(lanes):
                            total[i] = T.float32(0)
                        for k in range(keys):
                            for i in T.vectorized(lanes):
                                total[i] = (
                                    total[i] + query[b, t, (h * group + q) * keys + k] * state[b, h, k, column + i]
                                )
                        for i in T.vectorized(lanes):
                            output[b, t, (h * group + q) * values + column + i] = total[i] * T.float32(attention.scale)

    return linear_attention
