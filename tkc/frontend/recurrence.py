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

import numpy as np
from tvm import relax, tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

Number: TypeAlias = tirx.PrimExpr
Activation: TypeAlias = Callable[[Number], Number]
Kind: TypeAlias = Literal["LSTM", "GRU", "RNN"]

GATES: dict[Kind, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""How many gates a cell has: input, output, forget, cell of an LSTM; update, reset, hidden of a GRU."""

ONNX_ORDER: dict[Kind, tuple[int, ...]] = {"LSTM": (0, 1, 2, 3), "GRU": (0, 1, 2), "RNN": (0,)}
"""Where each of these gates stands among the rows of ONNX's weights."""

TORCH_ORDER: dict[Kind, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The same for PyTorch: input, forget, cell, output of an LSTM; reset, update, new of a GRU."""

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
    bias included. ``order`` says where each gate stands among those of the weights, a GRU's hidden one last.
    ``projected`` is the size of an LSTM's hidden state where a matrix makes it of the output of the cell.
    """

    kind: Kind
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    peepholes: bool = False
    coupled: bool = False
    reset_after: bool = False
    order: tuple[int, ...] = ()
    projected: int | None = None

    @property
    def state(self) -> int:
        """The size of the hidden state, which the recurrent weights are multiplied by."""
        return self.hidden if self.projected is None else self.projected

    @property
    def width(self) -> int:
        """The size of all gates."""
        return GATES[self.kind] * self.hidden

    @property
    def directions(self) -> int:
        """1, or 2 of a bidirectional layer."""
        return len(self.reverse)

    def is_reversed(self, direction: Number) -> Number:
        """Whether a direction runs from the last step to the first."""
        if len(set(self.reverse)) == 1:
            return tirx.const(self.reverse[0], "bool")
        return tirx.EQ(direction, tirx.const(self.reverse.index(True), "int64"))

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


@dataclass(frozen=True)
class Operands:
    """What :func:`recurrence` takes: ``inputs [T, B, D * G * H]``, ``weights [D, S, G * H]``, ``first [D, B, S]`` and,
    of an LSTM, ``first_cell [D, B, H]``.

    Without ``bias``, ``peepholes`` or ``first_cell`` these are zeros; without ``lengths`` each sequence has all steps.
    """

    inputs: relax.Expr
    weights: relax.Expr
    first: relax.Expr
    first_cell: relax.Expr | None = None
    bias: relax.Expr | None = None
    peepholes: relax.Expr | None = None
    projection: relax.Expr | None = None
    lengths: relax.Expr | None = None


def emit_recurrence(builder: relax.BlockBuilder, cell: Cell, operands: Operands, dtype: str) -> list[relax.Var]:
    """The states ``[T, D, B, S]`` of all steps, the last one ``[D, B, S]`` and the last of the cell ``[D, B, H]``."""
    steps, batch = operands.inputs.struct_info.shape.values[:2]
    count, hidden, size = cell.directions, cell.hidden, cell.state

    def given(operand: relax.Expr | None, shape: list[int]) -> relax.Expr:
        return relax.const(np.zeros(shape), dtype) if operand is None else operand

    first_cell, lengths = operands.first_cell, operands.lengths
    if first_cell is None:
        first_cell = builder.emit(relax.op.full([count, batch, hidden], relax.const(0, dtype), dtype))
    if lengths is None:
        length = builder.emit(relax.op.arange(steps, steps + 1, 1, "int32"))
        lengths = builder.emit(relax.op.broadcast_to(length, [batch]))
    arguments = [
        operands.inputs,
        operands.weights,
        given(operands.bias, [count, hidden]),
        given(operands.peepholes, [count, 3 * hidden]),
        given(operands.projection, [count, 1, 1]),
        lengths,
        operands.first,
        first_cell,
    ]
    shapes = [[steps, count, batch, size], [count, batch, size], [count, batch, hidden], [count, batch, cell.width]]
    function = builder.add_func(recurrence(cell, dtype), "recurrence")
    infos = [relax.TensorStructInfo(shape, dtype) for shape in shapes]
    results = builder.emit(relax.call_tir(function, arguments, infos))
    return [builder.emit(relax.TupleGetItem(results, i)) for i in range(3)]


def recurrence(cell: Cell, dtype: str) -> tirx.PrimFunc:
    """The loop over time of ``cell`` in ``dtype``, float32 or float64.

    Takes, with D directions, G gates of H each, a hidden state of S (which is H without a projection), T steps and B
    sequences: ``inputs [T, B, D * G * H]``, which hold all biases but the one that the reset gate applies to;
    ``weights [D, S, G * H]``; ``bias [D, H]``, that one; ``peepholes [D, 3 * H]``, of input, output and forget gate;
    ``projection [D, H, S]``, ``[D, 1, 1]`` and not read where there is none; ``lengths [B]`` int32;
    ``first [D, B, S]``, the hidden state, and ``first_cell [D, B, H]``. Writes ``states [T, D, B, S]``, zeros beyond
    each sequence, ``last [D, B, S]`` and ``last_cell [D, B, H]``, zeros of a sequence without steps, as ONNX Runtime
    has it, and the gates of the last step to ``scratch [D, B, G * H]``, an argument because a CUDA kernel cannot
    allocate global memory. A direction that is reversed begins at each sequence's own end.
    """
    hidden, count, size = cell.hidden, cell.directions, cell.state
    width = cell.width
    projects = cell.projected is not None
    at = [place * hidden for place in cell.order]
    part = 2 * hidden if cell.kind == "GRU" and not cell.reset_after else width
    lanes, few = math.gcd(hidden, _LANES), math.gcd(size, _LANES)
    is_lstm, is_gru = cell.kind == "LSTM", cell.kind == "GRU"
    one = tirx.const(1, dtype)

    def vectors(numbers: int, each: int = lanes) -> int:
        return math.gcd(numbers // each, _VECTORS)

    @T.prim_func(private=True, s_tir=True)
    def recurrence(
        inputs_handle: T.handle,
        weights_handle: T.handle,
        bias_handle: T.handle,
        peepholes_handle: T.handle,
        projection_handle: T.handle,
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
        weights = T.match_buffer(weights_handle, (count, size, width), dtype)
        bias = T.match_buffer(bias_handle, (count, hidden), dtype)
        peepholes = T.match_buffer(peepholes_handle, (count, 3 * hidden), dtype)
        projection = T.match_buffer(
            projection_handle, (count, hidden if projects else 1, size if projects else 1), dtype
        )
        lengths = T.match_buffer(lengths_handle, (batch,), "int32")
        first = T.match_buffer(first_handle, (count, batch, size), dtype)
        first_cell = T.match_buffer(first_cell_handle, (count, batch, hidden), dtype)
        states = T.match_buffer(states_handle, (steps, count, batch, size), dtype)
        last = T.match_buffer(last_handle, (count, batch, size), dtype)
        last_cell = T.match_buffer(last_cell_handle, (count, batch, hidden), dtype)
        scratch = T.match_buffer(scratch_handle, (count, batch, width), dtype)
        for task in T.parallel(count * batch):
            with T.sblock():
                total = T.sblock_alloc_buffer((_LANES * _VECTORS,), dtype, scope="local")
                length = T.sblock_alloc_buffer((1,), "int64", scope="local")
                d: T.let[T.int64] = T.truncdiv(task, batch)
                b: T.let[T.int64] = T.truncmod(task, batch)
                length[0] = T.max(T.min(T.Cast("int64", lengths[b]), steps), T.int64(0))
                for i in range(size):
                    last[d, b, i] = first[d, b, i]
                for i in range(hidden):
                    last_cell[d, b, i] = first_cell[d, b, i]
                for step in T.serial(length[0]):
                    t: T.let[T.int64] = T.Select(cell.is_reversed(d), length[0] - step - 1, step)
                    # The gates that the hidden state itself goes into.
                    for j in range(part // (lanes * vectors(part))):
                        for v in T.unroll(vectors(part)):
                            for i in T.vectorized(lanes):
                                total[v * lanes + i] = (
                                    inputs[t, b, d * width + (j * vectors(part) + v) * lanes + i]
                                    if not (cell.reset_after and is_gru)
                                    else T.Cast(dtype, 0)
                                )
                        for k in range(size):
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
                                    scratch[d, b, at[0] + j * lanes + i] = (
                                        scratch[d, b, at[0] + j * lanes + i]
                                        + peepholes[d, j * lanes + i] * last_cell[d, b, j * lanes + i]
                                    )
                                scratch[d, b, at[0] + j * lanes + i] = cell.function(
                                    0, d, scratch[d, b, at[0] + j * lanes + i]
                                )
                            for i in T.vectorized(lanes):
                                if cell.coupled:
                                    scratch[d, b, at[2] + j * lanes + i] = one - scratch[d, b, at[0] + j * lanes + i]
                                else:
                                    if cell.peepholes:
                                        scratch[d, b, at[2] + j * lanes + i] = (
                                            scratch[d, b, at[2] + j * lanes + i]
                                            + peepholes[d, 2 * hidden + j * lanes + i] * last_cell[d, b, j * lanes + i]
                                        )
                                    scratch[d, b, at[2] + j * lanes + i] = cell.function(
                                        0, d, scratch[d, b, at[2] + j * lanes + i]
                                    )
                            for i in T.vectorized(lanes):
                                last_cell[d, b, j * lanes + i] = scratch[d, b, at[2] + j * lanes + i] * last_cell[
                                    d, b, j * lanes + i
                                ] + scratch[d, b, at[0] + j * lanes + i] * cell.function(
                                    1, d, scratch[d, b, at[3] + j * lanes + i]
                                )
                            for i in T.vectorized(lanes):
                                if cell.peepholes:
                                    scratch[d, b, at[1] + j * lanes + i] = (
                                        scratch[d, b, at[1] + j * lanes + i]
                                        + peepholes[d, hidden + j * lanes + i] * last_cell[d, b, j * lanes + i]
                                    )
                                scratch[d, b, at[1] + j * lanes + i] = cell.function(
                                    0, d, scratch[d, b, at[1] + j * lanes + i]
                                ) * cell.function(2, d, last_cell[d, b, j * lanes + i])
                        if projects:
                            for j in range(size // (few * vectors(size, few))):
                                for v in T.unroll(vectors(size, few)):
                                    for i in T.vectorized(few):
                                        total[v * few + i] = T.Cast(dtype, 0)
                                for k in range(hidden):
                                    for v in T.unroll(vectors(size, few)):
                                        for i in T.vectorized(few):
                                            total[v * few + i] = (
                                                total[v * few + i]
                                                + scratch[d, b, at[1] + k]
                                                * projection[d, k, (j * vectors(size, few) + v) * few + i]
                                            )
                                for v in T.unroll(vectors(size, few)):
                                    for i in T.vectorized(few):
                                        last[d, b, (j * vectors(size, few) + v) * few + i] = total[v * few + i]
                        else:
                            for j in range(hidden // lanes):
                                for i in T.vectorized(lanes):
                                    last[d, b, j * lanes + i] = scratch[d, b, at[1] + j * lanes + i]
                    elif is_gru and cell.reset_after:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                scratch[d, b, at[0] + j * lanes + i] = cell.function(
                                    0,
                                    d,
                                    scratch[d, b, at[0] + j * lanes + i]
                                    + inputs[t, b, d * width + at[0] + j * lanes + i],
                                )
                            for i in T.vectorized(lanes):
                                scratch[d, b, at[1] + j * lanes + i] = cell.function(
                                    0,
                                    d,
                                    scratch[d, b, at[1] + j * lanes + i]
                                    + inputs[t, b, d * width + at[1] + j * lanes + i],
                                )
                            for i in T.vectorized(lanes):
                                scratch[d, b, 2 * hidden + j * lanes + i] = cell.function(
                                    1,
                                    d,
                                    inputs[t, b, d * width + 2 * hidden + j * lanes + i]
                                    + scratch[d, b, at[1] + j * lanes + i]
                                    * (scratch[d, b, 2 * hidden + j * lanes + i] + bias[d, j * lanes + i]),
                                )
                            for i in T.vectorized(lanes):
                                last[d, b, j * lanes + i] = (one - scratch[d, b, at[0] + j * lanes + i]) * scratch[
                                    d, b, 2 * hidden + j * lanes + i
                                ] + scratch[d, b, at[0] + j * lanes + i] * last[d, b, j * lanes + i]
                    elif is_gru:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                scratch[d, b, at[0] + j * lanes + i] = cell.function(
                                    0, d, scratch[d, b, at[0] + j * lanes + i]
                                )
                            for i in T.vectorized(lanes):
                                last_cell[d, b, j * lanes + i] = (
                                    cell.function(0, d, scratch[d, b, at[1] + j * lanes + i])
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
                                last[d, b, j * lanes + i] = (
                                    one - scratch[d, b, at[0] + j * lanes + i]
                                ) * cell.function(1, d, scratch[d, b, part + j * lanes + i]) + scratch[
                                    d, b, at[0] + j * lanes + i
                                ] * last[d, b, j * lanes + i]
                    else:
                        for j in range(hidden // lanes):
                            for i in T.vectorized(lanes):
                                last[d, b, j * lanes + i] = cell.function(0, d, scratch[d, b, j * lanes + i])
                    for i in range(size):
                        states[t, d, b, i] = last[d, b, i]
                for step in T.serial(steps - length[0]):
                    for i in range(size):
                        states[length[0] + step, d, b, i] = T.Cast(dtype, 0)
                if length[0] == T.int64(0):
                    for i in range(size):
                        last[d, b, i] = T.Cast(dtype, 0)
                    for i in range(hidden):
                        last_cell[d, b, i] = T.Cast(dtype, 0)

    return recurrence
