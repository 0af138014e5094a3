"""ONNX Runtime's LSTM of 8-bit weights, which quantizes its inputs and its hidden state while the model runs."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.quantization import as_type, dynamically_quantized, looked_at, summed_in
from tkc.frontend.onnx.converters.recurrent import PEEPHOLES, first_state, recurrent_cell, recurrent_lengths
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar, size_scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.quantized_recurrence import emit_quantized_recurrence
from tkc.frontend.recurrence import Cell

_BYTES = ("int8", "uint8")


def _dynamic_quantize_lstm(node: Node) -> Converted:
    """X, W, R, B, lengths, states and peepholes as an LSTM has them, W and R transposed; then their scales and zeros.

    X and the hidden state of each step are quantized by their own range over the whole batch. ONNX Runtime, which may
    divide a batch among its threads, then has a range for each thread.
    """
    if node.dtype(0) != "float32" or node.dtype(1) not in _BYTES or node.dtype(2) not in _BYTES:
        found = ", ".join(node.dtype(i) for i in range(3))
        raise ConversionError(f"has inputs of {found}; expected float32, and weights of 8 bits: correct the model")
    cell = recurrent_cell(node, "LSTM", transposed=True)
    count, width, hidden = cell.directions, cell.width, cell.hidden
    steps, batch, features = node.shape(0)
    node.require_shape(1, [count, features, width])
    lengths = recurrent_lengths(node, steps, batch) if node.has(4) else None
    if node.has(PEEPHOLES):
        node.require_shape(PEEPHOLES, [count, 3 * hidden])
    inputs = _products(node, cell, _without_rest(node, lengths))
    if node.has(3):
        halves = node.emit(relax.op.reshape(node.tensor(3), [count, 2, width]))
        bias = node.emit(relax.op.reshape(relax.op.sum(halves, [1]), [count * width]))
        inputs = node.emit(relax.op.add(inputs, bias))
    zero = relax.const(np.zeros((count, 3 * hidden), "float32"), "float32")
    operands = [
        inputs,
        node.tensor(2),
        _by_column(node, cell, 10, "float32"),
        _by_column(node, cell, 11, "int32"),
        node.tensor(PEEPHOLES) if node.has(PEEPHOLES) else zero,
        _within(node, lengths, steps, batch),
        first_state(node, cell, 5, batch, "float32"),
        first_state(node, cell, 6, batch, "float32"),
    ]
    return emit_quantized_recurrence(node.builder, cell, operands)


def _without_rest(node: Node, lengths: relax.Expr | None) -> relax.Expr:
    """The inputs, zeros behind the longest sequence: no range has what is there."""
    if lengths is None:
        return node.tensor(0)
    longest = node.emit(relax.op.max(lengths))
    step = node.emit(relax.op.arange(0, node.shape(0)[0], 1, "int32"))
    inside = node.emit(relax.op.reshape(relax.op.less(step, longest), [node.shape(0)[0], 1, 1]))
    return node.emit(relax.op.where(inside, node.tensor(0), scalar(0, "float32")))


def _products(node: Node, cell: Cell, x: relax.Expr) -> relax.Expr:
    """The inputs of all steps, quantized, times their weights: float32 ``[T, B, D * 4 * H]``."""
    count, width, features = cell.directions, cell.width, node.shape(0)[2]
    codes, scale, offset = dynamically_quantized(node, x)
    inner = _accumulator(node, cell)
    whole = node.emit(relax.op.subtract(relax.op.astype(codes, inner), relax.op.astype(offset, inner)))
    zeros = node.emit(relax.op.reshape(_by_column(node, cell, 9, inner), [count, 1, width]))
    weights = node.emit(relax.op.subtract(as_type(node, 1, inner), zeros))
    columns = node.emit(relax.op.permute_dims(weights, [1, 0, 2]))
    columns = node.emit(relax.op.reshape(columns, [features, count * width]))
    total = node.emit(relax.op.astype(node.emit(relax.op.matmul(whole, columns)), "float32"))
    scales = node.emit(relax.op.reshape(_by_column(node, cell, 8, "float32"), [count * width]))
    return node.emit(relax.op.multiply(total, node.emit(relax.op.multiply(scale, scales))))


def _accumulator(node: Node, cell: Cell) -> str:
    """The type in which products of 8 bits are summed: exact either way."""
    codes, zeros = looked_at(node.value(1)), looked_at(node.value(9)) if node.has(9) else np.zeros(1, "int8")
    if codes is None or zeros is None:
        return "int32"
    zeros = np.reshape(zeros, (-1, 1, 1) if zeros.size in (1, cell.directions) else (cell.directions, 1, -1))
    largest = np.abs(codes.astype("int64") - zeros.astype("int64")).sum(1).max(initial=0)
    return summed_in(int(largest), node.value(1), node.value(9))


def _by_column(node: Node, cell: Cell, position: int, dtype: str) -> relax.Expr:
    """A scale or zero point, one for a direction or for each of its columns, as ``[D, 4 * H]``."""
    shape = [cell.directions, cell.width]
    if not node.has(position):
        return relax.const(np.zeros(shape, dtype), dtype)
    given = as_type(node, position, dtype)
    if node.rank(position) < 2:
        given = node.emit(relax.op.reshape(given, [cell.directions, 1]))
    return node.emit(relax.op.broadcast_to(given, shape))


def _within(node: Node, lengths: relax.Expr | None, steps: Size, batch: Size) -> relax.Expr:
    """How many steps each sequence has, none more than there are."""
    most = size_scalar(node, steps, "int32")
    if lengths is None:
        return node.emit(relax.op.broadcast_to(most, [batch]))
    return node.emit(relax.op.clip(node.emit(relax.op.minimum(lengths, most)), 0, np.iinfo("int32").max))


MICROSOFT_CONVERTERS: dict[str, Converter] = {"DynamicQuantizeLSTM": _dynamic_quantize_lstm}
"""Those of ONNX Runtime."""
