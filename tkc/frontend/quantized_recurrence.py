"""ONNX Runtime's dynamically quantized LSTM as one TensorIR function that loops over time.

The hidden state is quantized to 8 bits anew in each step, by the range that it has over the whole batch, so that the
sequences of a batch depend on each other: a direction is a task of its own, a sequence is not.
"""

from __future__ import annotations

import math

from tvm import relax, tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN
from tkc.frontend.recurrence import Cell

# One vector of AVX-512, and as many of them as accumulate side by side.
_LANES = 16
_VECTORS = 4

_STEPS = 255.0
"""From the smallest to the largest code of 8 bits."""


def emit_quantized_recurrence(builder: relax.BlockBuilder, cell: Cell, operands: list[relax.Expr]) -> list[relax.Var]:
    """The states ``[T, D, B, H]`` of all steps, the last one and the last of the cell, both ``[D, B, H]``.

    ``operands`` are the first that :func:`quantized_recurrence` takes.
    """
    steps, batch = operands[0].struct_info.shape.values[:2]
    count, hidden, width = cell.directions, cell.hidden, cell.width
    state = [count, batch, hidden]
    shapes = [([steps, *state], "float32"), (state, "float32"), (state, "float32")]
    scratch = [([count, width], "float32"), (state, "int32")]
    codes = str(operands[1].struct_info.dtype)
    function = builder.add_func(quantized_recurrence(cell, codes), "quantized_recurrence")
    infos = [relax.TensorStructInfo(shape, dtype) for shape, dtype in (*shapes, *scratch)]
    results = builder.emit(relax.call_tir(function, operands, infos))
    return [builder.emit(relax.TupleGetItem(results, i)) for i in range(3)]


def quantized_recurrence(cell: Cell, codes: str) -> tirx.PrimFunc:
    """The loop over time of an LSTM whose recurrent weights have the type ``codes``, int8 or uint8.

    Takes, with D directions of H units, T steps and B sequences: ``inputs [T, B, D * 4 * H]``, which hold all biases;
    ``weights [D, H, 4 * H]`` with their ``scales`` and ``zeros [D, 4 * H]``, of which these are int32;
    ``peepholes [D, 3 * H]``, of input, output and forget gate; ``lengths [B]`` int32, from 0 to T; ``first`` and
    ``first_cell [D, B, H]``. Writes ``states [T, D, B, H]``, zeros beyond each sequence, ``last`` and
    ``last_cell [D, B, H]``, zeros of a sequence without steps; and to ``gates [D, 4 * H]`` and ``whole [D, B, H]``, the
    gates of one sequence and the codes of the hidden state less their zero point.

    As ONNX Runtime has it, the range of a step is that of the sequences that have not ended before the step before it.
    """
    hidden, count, width = cell.hidden, cell.directions, cell.width
    at = [place * hidden for place in cell.order]
    lanes = math.gcd(hidden, _LANES)
    vectors = math.gcd(width // lanes, _VECTORS)
    one = tirx.const(1, "float32")

    def bounded(code: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.max(tirx.min(code, tirx.const(_STEPS, "float32")), tirx.const(0, "float32"))

    @T.prim_func(private=True, s_tir=True)
    def quantized_recurrence(
        inputs_handle: T.handle,
        weights_handle: T.handle,
        scales_handle: T.handle,
        zeros_handle: T.handle,
        peepholes_handle: T.handle,
        lengths_handle: T.handle,
        first_handle: T.handle,
        first_cell_handle: T.handle,
        states_handle: T.handle,
        last_handle: T.handle,
        last_cell_handle: T.handle,
        gates_handle: T.handle,
        whole_handle: T.handle,
    ) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        steps, batch = T.int64(), T.int64()
        inputs = T.match_buffer(inputs_handle, (steps, batch, count * width), "float32")
        weights = T.match_buffer(weights_handle, (count, hidden, width), codes)
        scales = T.match_buffer(scales_handle, (count, width), "float32")
        zeros = T.match_buffer(zeros_handle, (count, width), "int32")
        peepholes = T.match_buffer(peepholes_handle, (count, 3 * hidden), "float32")
        lengths = T.match_buffer(lengths_handle, (batch,), "int32")
        first = T.match_buffer(first_handle, (count, batch, hidden), "float32")
        first_cell = T.match_buffer(first_cell_handle, (count, batch, hidden), "float32")
        states = T.match_buffer(states_handle, (steps, count, batch, hidden), "float32")
        last = T.match_buffer(last_handle, (count, batch, hidden), "float32")
        last_cell = T.match_buffer(last_cell_handle, (count, batch, hidden), "float32")
        gates = T.match_buffer(gates_handle, (count, width), "float32")
        whole = T.match_buffer(whole_handle, (count, batch, hidden), "int32")
        for d in T.parallel(tirx.const(count, "int64")):
            with T.sblock():
                total = T.sblock_alloc_buffer((_LANES * _VECTORS,), "int32", scope="local")
                # The lowest and the highest number, the scale, and the zero point of the hidden state.
                extent = T.sblock_alloc_buffer((4,), "float32", scope="local")
                summed = T.sblock_alloc_buffer((1,), "int32", scope="local")
                for b in T.serial(batch):
                    for i in range(hidden):
                        last[d, b, i] = first[d, b, i]
                        last_cell[d, b, i] = first_cell[d, b, i]
                for step in T.serial(steps):
                    extent[0] = T.float32(0)
                    extent[1] = T.float32(0)
                    for b in T.serial(batch):
                        if step <= T.Cast("int64", lengths[b]):
                            for i in range(hidden):
                                extent[0] = T.min(extent[0], last[d, b, i])
                                extent[1] = T.max(extent[1], last[d, b, i])
                    extent[2] = T.Select(
                        extent[1] > extent[0], (extent[1] - extent[0]) / T.float32(_STEPS), T.float32(1)
                    )
                    extent[3] = bounded(tirx.nearbyint(T.float32(0) - extent[0] / extent[2]))
                    for b in T.serial(batch):
                        if step < T.Cast("int64", lengths[b]):
                            t: T.let[T.int64] = T.Select(
                                cell.is_reversed(d), T.Cast("int64", lengths[b]) - step - 1, step
                            )
                            summed[0] = 0
                            for i in range(hidden):
                                whole[d, b, i] = T.Cast(
                                    "int32", bounded(tirx.nearbyint(last[d, b, i] / extent[2]) + extent[3]) - extent[3]
                                )
                                summed[0] = summed[0] + whole[d, b, i]
                            for j in range(width // (lanes * vectors)):
                                for v in T.unroll(vectors):
                                    for i in T.vectorized(lanes):
                                        total[v * lanes + i] = 0
                                for k in range(hidden):
                                    for v in T.unroll(vectors):
                                        for i in T.vectorized(lanes):
                                            total[v * lanes + i] = total[v * lanes + i] + whole[d, b, k] * T.Cast(
                                                "int32", weights[d, k, (j * vectors + v) * lanes + i]
                                            )
                                for v in T.unroll(vectors):
                                    for i in T.vectorized(lanes):
                                        gates[d, (j * vectors + v) * lanes + i] = inputs[
                                            t, b, d * width + (j * vectors + v) * lanes + i
                                        ] + T.Cast(
                                            "float32",
                                            total[v * lanes + i] - summed[0] * zeros[d, (j * vectors + v) * lanes + i],
                                        ) * (extent[2] * scales[d, (j * vectors + v) * lanes + i])
                            for j in range(hidden // lanes):
                                for i in T.vectorized(lanes):
                                    if cell.peepholes:
                                        gates[d, at[0] + j * lanes + i] = (
                                            gates[d, at[0] + j * lanes + i]
                                            + peepholes[d, j * lanes + i] * last_cell[d, b, j * lanes + i]
                                        )
                                    gates[d, at[0] + j * lanes + i] = cell.function(
                                        0, d, gates[d, at[0] + j * lanes + i]
                                    )
                                for i in T.vectorized(lanes):
                                    if cell.coupled:
                                        gates[d, at[2] + j * lanes + i] = one - gates[d, at[0] + j * lanes + i]
                                    else:
                                        if cell.peepholes:
                                            gates[d, at[2] + j * lanes + i] = (
                                                gates[d, at[2] + j * lanes + i]
                                                + peepholes[d, 2 * hidden + j * lanes + i]
                                                * last_cell[d, b, j * lanes + i]
                                            )
                                        gates[d, at[2] + j * lanes + i] = cell.function(
                                            0, d, gates[d, at[2] + j * lanes + i]
                                        )
                                for i in T.vectorized(lanes):
                                    last_cell[d, b, j * lanes + i] = gates[d, at[2] + j * lanes + i] * last_cell[
                                        d, b, j * lanes + i
                                    ] + gates[d, at[0] + j * lanes + i] * cell.function(
                                        1, d, gates[d, at[3] + j * lanes + i]
                                    )
                                for i in T.vectorized(lanes):
                                    if cell.peepholes:
                                        gates[d, at[1] + j * lanes + i] = (
                                            gates[d, at[1] + j * lanes + i]
                                            + peepholes[d, hidden + j * lanes + i] * last_cell[d, b, j * lanes + i]
                                        )
                                    last[d, b, j * lanes + i] = cell.function(
                                        0, d, gates[d, at[1] + j * lanes + i]
                                    ) * cell.function(2, d, last_cell[d, b, j * lanes + i])
                            for i in range(hidden):
                                states[t, d, b, i] = last[d, b, i]
                        else:
                            for i in range(hidden):
                                states[step, d, b, i] = T.float32(0)
                for b in T.serial(batch):
                    if lengths[b] == 0:
                        for i in range(hidden):
                            last[d, b, i] = T.float32(0)
                            last_cell[d, b, i] = T.float32(0)

    return quantized_recurrence
