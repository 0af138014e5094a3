"""LSTM, GRU and RNN: one matmul for the inputs of all steps, and a loop over time (:mod:`tkc.frontend.recurrence`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from tvm import relax, tirx

from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.recurrence import GATES, ONNX_ORDER, Activation, Cell, Kind, Number, Operands, emit_recurrence

_DEFAULTS: dict[Kind, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
PEEPHOLES = 7
"""The input of an LSTM that holds its peepholes."""


def _like(value: float, x: Number) -> Number:
    return tirx.const(value, x.dtype)


def _relu(x: Number) -> Number:
    return tirx.Select(x < _like(0, x), _like(0, x), x)


def _softplus(x: Number) -> Number:
    # Of large numbers e^x is infinite, and the result is the number.
    positive = _relu(x)
    return positive + tirx.log(_like(1, x) + tirx.exp(x - positive - positive))


def _hard_sigmoid(x: Number, alpha: float, beta: float) -> Number:
    bounded = _relu(_like(alpha, x) * x + _like(beta, x))
    return tirx.Select(bounded > _like(1, x), _like(1, x), bounded)


_REQUIRED = math.nan
"""The default of a parameter of which the standard and ONNX Runtime have none, or not the same."""

# Each function of a number, alpha and beta, with the defaults of the two; None where it has no such parameter.
_ACTIVATIONS: dict[str, tuple[Callable[[Number, Any, Any], Number], float | None, float | None]] = {
    "affine": (lambda x, alpha, beta: _like(alpha, x) * x + _like(beta, x), _REQUIRED, _REQUIRED),
    "elu": (
        lambda x, alpha, _: tirx.Select(x < _like(0, x), _like(alpha, x) * (tirx.exp(x) - _like(1, x)), x),
        1.0,
        None,
    ),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "leakyrelu": (lambda x, alpha, _: tirx.Select(x < _like(0, x), _like(alpha, x) * x, x), 0.01, None),
    "relu": (lambda x, *_: _relu(x), None, None),
    "scaledtanh": (lambda x, alpha, beta: _like(alpha, x) * tirx.tanh(_like(beta, x) * x), _REQUIRED, _REQUIRED),
    "sigmoid": (lambda x, *_: tirx.sigmoid(x), None, None),
    "softplus": (lambda x, *_: _softplus(x), None, None),
    "softsign": (lambda x, *_: tirx.Div(x, _like(1, x) + tirx.abs(x)), None, None),
    "tanh": (lambda x, *_: tirx.tanh(x), None, None),
    "thresholdedrelu": (lambda x, alpha, _: tirx.Select(x <= _like(alpha, x), _like(0, x), x), _REQUIRED, None),
}


def _recurrent(kind: Kind) -> Converter:
    def convert(node: Node) -> Converted:
        cell = recurrent_cell(node, kind)
        batch_first = bool(node.attribute("layout", 0))
        dtype = node.dtype(0)
        inner = dtype if dtype == "float64" else "float32"
        x = _as(node, node.tensor(0), inner)
        if batch_first:
            x = node.emit(relax.op.permute_dims(x, [1, 0, 2]))
        steps, batch = x.struct_info.shape.values[:2]
        inputs, weights, bias = _products(node, cell, x, inner)
        first, first_cell = (first_state(node, cell, position, batch, inner, batch_first) for position in (5, 6))
        if cell.peepholes:
            node.require_shape(PEEPHOLES, [cell.directions, 3 * cell.hidden])
        peepholes = _as(node, node.tensor(PEEPHOLES), inner) if cell.peepholes else None
        lengths = recurrent_lengths(node, steps, batch) if node.has(4) else None
        operands = Operands(inputs, weights, first, first_cell, bias, peepholes, None, lengths)
        states, *last = emit_recurrence(node.builder, cell, operands, inner)
        if batch_first:
            states = node.emit(relax.op.permute_dims(states, [2, 0, 1, 3]))
            last = [node.emit(relax.op.permute_dims(state, [1, 0, 2])) for state in last]
        outputs = [states, *last][: 3 if kind == "LSTM" else 2]
        return [_as(node, output, dtype) for output in outputs]

    return convert


def recurrent_cell(node: Node, kind: Kind, transposed: bool = False) -> Cell:
    """What one step of the node computes, whose weights may have their two last axes ``transposed``."""
    weights = node.shape(2)
    hidden = node.attribute("hidden_size", weights[1 if transposed else 2])
    if not all(isinstance(size, int) for size in (*weights, *node.shape(1))):
        raise ConversionError("needs weights of fixed sizes; export the model with fixed sizes there")
    reverse = _REVERSE[node.attribute("direction", "forward").lower()]
    sizes = [GATES[kind] * hidden, hidden]
    expected = [len(reverse), *(sizes[::-1] if transposed else sizes)]
    if weights != expected:
        raise ConversionError(f"has recurrent weights of shape {weights}; expected {expected}: correct the model")
    clip = node.attribute("clip")
    return Cell(
        kind,
        hidden,
        reverse,
        _activations(node, kind, len(reverse)),
        clip if clip else None,
        peepholes=kind == "LSTM" and node.has(PEEPHOLES),
        coupled=bool(node.attribute("input_forget", 0)),
        reset_after=kind == "GRU" and bool(node.attribute("linear_before_reset", 0)),
        order=ONNX_ORDER[kind],
    )


def _activations(node: Node, kind: Kind, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """The functions of each direction, whose parameters stand in one list for all that have one."""
    each = len(_DEFAULTS[kind])
    given = node.attribute("activations")
    names = [name.decode() for name in given] if given else list(_DEFAULTS[kind]) * directions
    if len(names) == each < each * directions:
        names *= directions
    alphas, betas = (iter(node.attribute(f"activation_{name}", ())) for name in ("alpha", "beta"))
    functions = [_activation(name, alphas, betas) for name in names]
    if len(functions) != each * directions:
        raise ConversionError(f"has {len(functions)} activations; expected {each * directions}: correct the model")
    return tuple(tuple(functions[i : i + each]) for i in range(0, len(functions), each))


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    if name.lower() not in _ACTIVATIONS:
        raise ConversionError(f"has the activation {name!r}, which the standard does not; correct the model")
    function, alpha, beta = _ACTIVATIONS[name.lower()]
    chosen = (
        None if alpha is None else next(alphas, alpha),
        None if beta is None else next(betas, beta),
    )
    if any(number is not None and math.isnan(number) for number in chosen):
        raise ConversionError(
            f"has no parameter for the activation {name!r}; give activation_alpha and activation_beta"
        )
    return lambda x: function(x, *chosen)


def _products(node: Node, cell: Cell, x: relax.Expr, dtype: str) -> tuple[relax.Expr, relax.Expr, relax.Expr | None]:
    """The inputs of all steps times their weights, with biases; the recurrent weights; the bias that is left."""
    width, count, hidden = GATES[cell.kind] * cell.hidden, cell.directions, cell.hidden
    features = node.shape(1)[2]
    weights = node.emit(relax.op.reshape(_as(node, node.tensor(1), dtype), [count * width, features]))
    product = node.emit(relax.op.matmul(x, node.emit(relax.op.permute_dims(weights, [1, 0]))))
    recurrent = node.emit(relax.op.permute_dims(_as(node, node.tensor(2), dtype), [0, 2, 1]))
    if not node.has(3):
        return product, recurrent, None
    biases = node.emit(relax.op.reshape(_as(node, node.tensor(3), dtype), [count, 2, width]))
    of_input, of_state = (node.emit(relax.op.take(biases, relax.const(i, "int64"), 1, mode="clip")) for i in range(2))
    cut = width - hidden
    apart = node.emit(relax.op.strided_slice(of_state, [1], [cut], [width]))
    if cell.reset_after:
        zeros = node.emit(relax.op.zeros([count, hidden], dtype))
        kept = node.emit(relax.op.strided_slice(of_state, [1], [0], [cut]))
        of_state = node.emit(relax.op.concat([kept, zeros], 1))
    bias = node.emit(relax.op.reshape(node.emit(relax.op.add(of_input, of_state)), [count * width]))
    return node.emit(relax.op.add(product, bias)), recurrent, apart


def recurrent_lengths(node: Node, steps: Size, batch: Size) -> relax.Expr:
    """How many steps each sequence has."""
    node.require_shape(4, [batch])
    node.note_count(node.tensor(4), steps)
    return _as(node, node.tensor(4), "int32")


def first_state(
    node: Node, cell: Cell, position: int, batch: Size, dtype: str, batch_first: bool = False
) -> relax.Expr:
    """The hidden state, or that of the cell, which the loop begins with, ``[D, B, H]``; zeros where it is left out."""
    shape = [cell.directions, batch, cell.hidden]
    if not node.has(position):
        return node.emit(relax.op.full(shape, scalar(0, dtype), dtype))
    state = _as(node, node.tensor(position), dtype)
    node_shape = node.shape(position)
    if batch_first:
        state = node.emit(relax.op.permute_dims(state, [1, 0, 2]))
        node_shape = [node_shape[1], node_shape[0], node_shape[2]]
    for size, expected in zip(node_shape, shape, strict=True):
        node.require_equal(size, expected)
    return state


def _as(node: Node, tensor: relax.Expr, dtype: str) -> relax.Expr:
    return tensor if tensor.struct_info.dtype == dtype else node.emit(relax.op.astype(tensor, dtype))


CONVERTERS: dict[str, Converter] = {kind: _recurrent(kind) for kind in GATES}
