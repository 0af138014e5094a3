"""Recurrent layers (LSTM, GRU, RNN) as one TensorIR function that loops over time.

The inputs of all steps are multiplied by their weights before, in one matmul; each step multiplies the hidden state by
the recurrent weights and applies the cell. So a symbolic length costs nothing to compile, and a long one neither.
Sequences of a batch do not depend on each other, nor do the two directions: each is a task of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvm import tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

Number: TypeAlias = tirx.PrimExpr
Activation: TypeAlias = Callable[[Number], Number]
Kind: TypeAlias = Literal["LSTM", "GRU", "RNN"]

GATES: dict[Kind, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""How many gates a cell has: input, output, forget, cell of an LSTM; update, reset, hidden of a GRU."""

# The activation of an LSTM's output.
_OF_OUTPUT = 2

# One vector of AVX-512, and as many of them as accumulate side by side.
_LANES = 16
_VECTORS = 4


@dataclass(frozen=True)
class Cell:
    """What one step computes.

    ``activations`` has, for each direction, the functions of the gates, of the candidate and of the output, as far as
    the kind has them. ``clip`` bounds what those of gates and candidate are applied to. ``coupled`` makes an LSTM's
    forget gate the complement of its input gate; ``reset_after`` makes a GRU apply its reset gate to the product, its
    bias included.
    """

    kind: Kind
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    peepholes: bool = False
    coupled: bool = False
    reset_after: bool = False

    @property
    def directions(self) -> int:
        """1, or 2 of a bidirectional layer."""
        return len(self.reverse)

    def function(self, position: int, direction: Number, x: Number) -> Number:
        """An activation of a direction, of a number within the clip.

        ONNX Runtime does not clip what the output of an LSTM is computed of, and the standard is not clear.
        """
        if self.clip is not None and position < _OF_OUTPUT:
            limit = tirx.const(self.clip, x.dtype)
            x = tirx.Select(x > limit, limit, tirx.Select(x < -limit, -limit, x))
        values = [functions[position](x) for functions in self.activations]
        if len(values) == 1:
            return values[0]
        return tirx.Select(tirx.EQ(direction, tirx.const(0, "int64")), values[0], values[1])


def recurrence(cell: Cell, dtype: str) -> tirx.PrimFunc:
    """The loop over time of ``cell`` in ``dtype``, float32 or float64.

    Takes, with D directions, G gates of H each, T steps and B sequences: ``inputs [T, B, D * G * H]``, which hold all
    biases but the one that the reset gate applies to; ``weights [D, H, G * H]``; ``bias [D, H]``, that one;
    ``peepholes [D, 3 * H]``, of input, output and forget gate; ``lengths [B]`` int32; ``first [D, B, H]``, the hidden
    state, and ``first_cell [D, B, H]``. Writes ``states [T, D, B, H]``, zeros beyond each sequence, ``last`` and
    ``last_cell [D, B, H]``, zeros of a sequence without steps, as ONNX Runtime has it, and the gates of the last step
    to ``scratch [D, B, G * H]``, an argument because a CUDA kernel cannot allocate global memory. A direction that is
    reversed begins at each sequence's own end.
    """
    hidden, count = cell.hidden, cell.directions
    width = GATES[cell.kind] * hidden
    part = 2 * hidden if cell.kind == "GRU" and not cell.reset_after else width
    lanes = math.gcd(hidden, _LANES)
    is_lstm, is_gru = cell.kind == "LSTM", cell.kind == "GRU"
    one = tirx.const(1, dtype)

    def is_reversed(direction: Number) -> Number:
        if len(set(cell.reverse)) == 1:
            return tirx.const(cell.reverse[0], "bool")
        return tirx.EQ(direction, tirx.const(cell.reverse.index(True), "int64"))

    def vectors(size: int) -> int:
        return math.gcd(size // lanes, _VECTORS)

    @T.prim_func(private=True, s_tir=True)
    def recurrence(
        inputs_handle: T.handle,
        weights_handle: T.handle,
        bias_handle: T.handle,
        peepholes_handle: T.handle,
        lengths_handle: T.handle,
        first_handle: T.handle,
        first_cell_handle: T.handle,
        states_handle: T.handle,
        last_handle: T.handle,
        last_cell_handle: T.handle,
        scratch_handle: T.handle,
    ) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        steps, batch = T.int64(), T.int64()
        inputs = T.match_buffer(inputs_handle, (steps, batch, count * width), dtype)
        weights = T.match_buffer(weights_handle, (count, hidden, width), dtype)
        bias = T.match_buffer(bias_handle, (count, hidden), dtype)
        peepholes = T.match_buffer(peepholes_handle, (count, 3 * hidden), dtype)
        lengths = T.match_buffer(lengths_handle, (batch,), "int32")
        first = T.match_buffer(first_handle, (count, batch, hidden), dtype)
        first_cell = T.match_buffer(first_cell_handle, (count, batch, hidden), dtype)
        states = T.match_buffer(states_handle, (steps, count, batch, hidden), dtype)
        last = T.match_buffer(last_handle, (count, batch, hidden), dtype)
        last_cell = T.match_buffer(last_cell_handle, (count, batch, hidden), dtype)
        scratch = T.match_buffer(scratch_handle, (count, batch, width), dtype)
        for task in T.parallel(count * batch):
            with T.sblock():
                total = T.sblock_alloc_buffer((_LANES * _VECTORS,), dtype, scope="local")
                length = T.sblock_alloc_buffer((1,), "int64", scope="local")
                d: T.let[T.int64] = T.truncdiv(task, batch)
                b: T.let[T.int64] = T.truncmod(task, batch)
                length[0] = T.max(T.min(T.Cast("int64", lengths[b]), steps), T.int64(0))
                for i in range(hidden):
                    last[d, b, i] = first[d, b, i]
                    last_cell[d, b, i] = first_cell[d, b, i]
                for step in T.serial(length[0]):
                    t: T.let[T.int64] = T.Select(is_reversed(d), length[0] - step - 1, step)
                    # The gates that the hidden state itself goes into.
                    for j in range(part // (lanes * vectors(part))):
                        for v in T.unroll(vectors(part)):
                            for i in T.vectorized(lanes):
                                total[v * lanes + i] = (
                                    inputs[t, b, d * width + (j * vectors(part) + v) * lanes + i]
                                    if not (cell.reset_after and is_gru)
                                    else T.Cast(dtype, 0)
                                )
                        for k in range(hidden):
                            for v in T.unroll(vectors(part)):
                                for i in T.vectorized(lanes):
                                    total[v * lanes + i] = (
                                        total[v * lanes + i]
                                        + last[d, b, k] * weights[d, k, (j * vectors(part) + v) * lanes + i]
                                    )
                        for v in T.unroll(vectors(part)):
                            for i in T.vectorized(lanes):
                                scratch[d, b, (j * vectors(part) + v) * lanes + i] = total[v * lanes + i]
                    if is_lstm:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                if cell.peepholes:
                                    scratch[d, b, j * lanes + i] = (
                                        scratch[d, b, j * lanes + i]
                                        + peepholes[d, j * lanes + i] * last_cell[d, b, j * lanes + i]
                                    )
                                scratch[d, b, j * lanes + i] = cell.function(0, d, scratch[d, b, j * lanes + i])
                            for i in T.vectorized(lanes):
                                if cell.coupled:
                                    scratch[d, b, 2 * hidden + j * lanes + i] = one - scratch[d, b, j * lanes + i]
                                else:
                                    if cell.peepholes:
                                        scratch[d, b, 2 * hidden + j * lanes + i] = (
                                            scratch[d, b, 2 * hidden + j * lanes + i]
                                            + peepholes[d, 2 * hidden + j * lanes + i] * last_cell[d, b, j * lanes + i]
                                        )
                                    scratch[d, b, 2 * hidden + j * lanes + i] = cell.function(
                                        0, d, scratch[d, b, 2 * hidden + j * lanes + i]
                                    )
                            for i in T.vectorized(lanes):
                                last_cell[d, b, j * lanes + i] = scratch[d, b, 2 * hidden + j * lanes + i] * last_cell[
                                    d, b, j * lanes + i
                                ] + scratch[d, b, j * lanes + i] * cell.function(
                                    1, d, scratch[d, b, 3 * hidden + j * lanes + i]
                                )
                            for i in T.vectorized(lanes):
                                if cell.peepholes:
                                    scratch[d, b, hidden + j * lanes + i] = (
                                        scratch[d, b, hidden + j * lanes + i]
                                        + peepholes[d, hidden + j * lanes + i] * last_cell[d, b, j * lanes + i]
                                    )
                                last[d, b, j * lanes + i] = cell.function(
                                    0, d, scratch[d, b, hidden + j * lanes + i]
                                ) * cell.function(2, d, last_cell[d, b, j * lanes + i])
                    elif is_gru and cell.reset_after:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                scratch[d, b, j * lanes + i] = cell.function(
                                    0, d, scratch[d, b, j * lanes + i] + inputs[t, b, d * width + j * lanes + i]
                                )
                            for i in T.vectorized(lanes):
                                scratch[d, b, hidden + j * lanes + i] = cell.function(
                                    0,
                                    d,
                                    scratch[d, b, hidden + j * lanes + i]
                                    + inputs[t, b, d * width + hidden + j * lanes + i],
                                )
                            for i in T.vectorized(lanes):
                                scratch[d, b, 2 * hidden + j * lanes + i] = cell.function(
                                    1,
                                    d,
                                    inputs[t, b, d * width + 2 * hidden + j * lanes + i]
                                    + scratch[d, b, hidden + j * lanes + i]
                                    * (scratch[d, b, 2 * hidden + j * lanes + i] + bias[d, j * lanes + i]),
                                )
                            for i in T.vectorized(lanes):
                                last[d, b, j * lanes + i] = (one - scratch[d, b, j * lanes + i]) * scratch[
                                    d, b, 2 * hidden + j * lanes + i
                                ] + scratch[d, b, j * lanes + i] * last[d, b, j * lanes + i]
                    elif is_gru:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                scratch[d, b, j * lanes + i] = cell.function(0, d, scratch[d, b, j * lanes + i])
                            for i in T.vectorized(lanes):
                                last_cell[d, b, j * lanes + i] = (
                                    cell.function(0, d, scratch[d, b, hidden + j * lanes + i])
                                    * last[d, b, j * lanes + i]
                                )
                        for j in range(hidden // (lanes * vectors(hidden))):
                            for v in T.unroll(vectors(hidden)):
                                for i in T.vectorized(lanes):
                                    total[v * lanes + i] = inputs[
                                        t, b, d * width + part + (j * vectors(hidden) + v) * lanes + i
                                    ]
                            for k in range(hidden):
                                for v in T.unroll(vectors(hidden)):
                                    for i in T.vectorized(lanes):
                                        total[v * lanes + i] = (
                                            total[v * lanes + i]
                                            + last_cell[d, b, k]
                                            * weights[d, k, part + (j * vectors(hidden) + v) * lanes + i]
                                        )
                            for v in T.unroll(vectors(hidden)):
                                for i in T.vectorized(lanes):
                                    scratch[d, b, part + (j * vectors(hidden) + v) * lanes + i] = total[v * lanes + i]
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                last[d, b, j * lanes + i] = (one - scratch[d, b, j * lanes + i]) * cell.function(
                                    1, d, scratch[d, b, part + j * lanes + i]
                                ) + scratch[d, b, j * lanes + i] * last[d, b, j * lanes + i]
                    else:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                last[d, b, j * lanes + i] = cell.function(0, d, scratch[d, b, j * lanes + i])
                    for i in range(hidden):
                        states[t, d, b, i] = last[d, b, i]
                for step in T.serial(steps - length[0]):
                    for i in range(hidden):
                        states[length[0] + step, d, b, i] = T.Cast(dtype, 0)
                if length[0] == T.int64(0):
                    for i in range(hidden):
                        last[d, b, i] = T.Cast(dtype, 0)
                        last_cell[d, b, i] = T.Cast(dtype, 0)

    return recurrence
