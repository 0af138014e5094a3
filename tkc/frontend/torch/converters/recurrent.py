"""LSTM, GRU and RNN: for each layer a matmul for the inputs of all steps and a loop over time
(:mod:`tkc.frontend.recurrence`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.recurrence import TORCH_ORDER, Activation, Cell, Kind, Number, Operands, emit_recurrence
from tkc.frontend.torch.converters.emitter import Converter, Emitter, source_of


def _relu(x: Number) -> Number:
    zero = tirx.const(0, x.dtype)
    return tirx.Select(x < zero, zero, x)  # NaN stays


_ACTIVATIONS: dict[Kind, tuple[Activation, ...]] = {
    "LSTM": (tirx.sigmoid, tirx.tanh, tirx.tanh),
    "GRU": (tirx.sigmoid, tirx.tanh),
    "RNN": (tirx.tanh,),
}


@dataclass(frozen=True)
class _Weights:
    """Those of one direction of a layer: ``of_input [G * H, F]``, ``of_state [G * H, S]``, ``biases [G * H]`` of both
    and ``projection [S, H]``."""

    of_input: relax.Expr
    of_state: relax.Expr
    biases: tuple[relax.Expr, relax.Expr] | None
    projection: relax.Expr | None


def _recurrent(kind: Kind, activations: tuple[Activation, ...]) -> Converter:
    """The converter of a layer. Of 16 bits, its state is float32 between steps."""

    def convert(
        b: Emitter,
        x: relax.Expr,
        first: Any,
        params: Sequence[relax.Expr],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[relax.Expr]:
        if train and dropout and layers > 1:
            raise b.unsupported(
                "dropout between the layers of a recurrent network in training mode is not supported. Call .eval() on "
                "the model first."
            )
        _note_length(b, batch_first=batch_first)
        dtype = x.struct_info.dtype
        states = [first] if isinstance(first, relax.Expr) else list(first)
        sizes = [int(state.struct_info.shape.values[2]) for state in states]
        directions = 2 if bidirectional else 1
        cell = Cell(
            kind,
            sizes[-1],
            (False, True)[:directions],
            (activations,) * directions,
            reset_after=kind == "GRU",
            order=TORCH_ORDER[kind],
            projected=sizes[0] if sizes[0] != sizes[-1] else None,
        )
        each = 2 + 2 * has_biases + (cell.projected is not None)
        weights = [_weights(params[i : i + each], has_biases) for i in range(0, len(params), each)]
        if batch_first:
            x = b.emit(op.permute_dims(x, [1, 0, 2]))
        last: list[list[relax.Expr]] = [[] for _ in states]
        for layer in range(layers):
            part = slice(layer * directions, (layer + 1) * directions)
            begin = [b.wide(b.emit(op.strided_slice(state, [0], [part.start], [part.stop]))) for state in states]
            made = emit_recurrence(
                b.builder, cell, _operands(b, cell, weights[part], x, begin), b.wide(x).struct_info.dtype
            )
            x = b.cast(_side_by_side(b, made[0], cell, batch_first=batch_first and layer == layers - 1), dtype)
            for found, state in zip(last, made[1:], strict=False):
                found.append(state)
        return [x, *(b.cast(_joined(b, found, 0), dtype) for found in last)]

    return convert


def _note_length(b: Emitter, *, batch_first: bool) -> None:
    """Note that a length that the data decides must be 1 or more; one of inputs is a condition of the signature."""
    x: Any = b.node.args[0]
    steps = x.meta["val"].shape[1 if batch_first else 0]
    if free_unbacked_symbols(steps):
        holds = b.tensor(b.symbols.size(steps) >= 1, "bool")
        b.index_uses.add_assertion(
            holds, f"a recurrent layer of a sequence without steps: {b.node.target} ({source_of(b.node)})"
        )


def _weights(params: Sequence[relax.Expr], has_biases: bool) -> _Weights:
    biases = (params[2], params[3]) if has_biases else None
    projection = params[-1] if len(params) % 2 else None
    return _Weights(params[0], params[1], biases, projection)


def _operands(
    b: Emitter, cell: Cell, weights: Sequence[_Weights], x: relax.Expr, states: Sequence[relax.Expr]
) -> Operands:
    """What the loop of one layer takes, of its input ``x [T, B, F]`` and its first states ``[D, B, ...]``."""
    of_input = _joined(b, [each.of_input for each in weights], 0)
    wide = states[0].struct_info.dtype
    inputs = b.emit(op.matmul(x, b.emit(op.permute_dims(of_input, [1, 0])), out_dtype=wide))
    bias = None
    if weights[0].biases is not None:
        added = []
        for each in weights:
            assert each.biases is not None
            of_x, of_state = (b.wide(bias) for bias in each.biases)
            added.append(b.emit(op.add(of_x, _outside_reset(b, cell, of_state))))
        inputs = b.emit(op.add(inputs, _joined(b, added, 0)))
        if cell.reset_after:
            bias = _stacked(b, [b.wide(_of_new(b, cell, each.biases[1])) for each in weights if each.biases])
    recurrent = _stacked(b, [b.wide(b.emit(op.permute_dims(each.of_state, [1, 0]))) for each in weights])
    projection = None
    if cell.projected is not None:
        matrices = [each.projection for each in weights if each.projection is not None]
        projection = _stacked(b, [b.wide(b.emit(op.permute_dims(matrix, [1, 0]))) for matrix in matrices])
    return Operands(inputs, recurrent, states[0], states[1] if len(states) > 1 else None, bias, None, projection)


def _outside_reset(b: Emitter, cell: Cell, bias: relax.Expr) -> relax.Expr:
    """The bias ``[G * H]`` of the state, zeros where a GRU's reset gate applies to it."""
    if not cell.reset_after:
        return bias
    kept = b.emit(op.strided_slice(bias, [0], [0], [2 * cell.hidden]))
    return b.emit(op.concat([kept, b.emit(op.zeros([cell.hidden], bias.struct_info.dtype))], 0))


def _of_new(b: Emitter, cell: Cell, bias: relax.Expr) -> relax.Expr:
    """The part ``[H]`` of a GRU's bias ``[G * H]`` that its reset gate applies to."""
    return b.emit(op.strided_slice(bias, [0], [2 * cell.hidden], [3 * cell.hidden]))


def _side_by_side(b: Emitter, states: relax.Expr, cell: Cell, *, batch_first: bool) -> relax.Expr:
    """``states [T, D, B, S]`` as ``[T, B, D * S]``, or ``[B, T, D * S]``."""
    steps, _, batch, _ = states.struct_info.shape.values
    shape = [batch, steps] if batch_first else [steps, batch]
    order = [2, 0, 1, 3] if batch_first else [0, 2, 1, 3]
    return b.emit(b.reshape(b.emit(op.permute_dims(states, order)), [*shape, cell.directions * cell.state]))


def _joined(b: Emitter, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    return parts[0] if len(parts) == 1 else b.emit(op.concat(list(parts), axis))


def _stacked(b: Emitter, parts: Sequence[relax.Expr]) -> relax.Expr:
    """The parts along a new first axis."""
    return _joined(b, [b.emit(op.expand_dims(part, [0])) for part in parts], 0)


CONVERTERS: dict[str, Converter] = {
    "aten.lstm.input": _recurrent("LSTM", _ACTIVATIONS["LSTM"]),
    "aten.gru.input": _recurrent("GRU", _ACTIVATIONS["GRU"]),
    "aten.rnn_tanh.input": _recurrent("RNN", _ACTIVATIONS["RNN"]),
    "aten.rnn_relu.input": _recurrent("RNN", (_relu,)),
}
