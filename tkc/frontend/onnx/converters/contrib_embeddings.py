"""ONNX Runtime's EmbedLayerNormalization: the sum of three embeddings, normalized; of floats and of bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.indexing import bounded_indices
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node

_Read = Callable[[relax.Expr, int], relax.Expr]
"""From what was read of a table, which has this place among the inputs, to its numbers."""

_TABLES = {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}
"""The inputs that are scale and zero point of each quantized one."""


def _embed_layer_normalization(node: Node) -> Converted:
    """Tokens, segments, three tables, scale and bias, a mask whose ones are counted, and positions."""
    return _normalized(node, lambda rows, _: rows, positions=8)


def _quantized_embed_layer_normalization(node: Node) -> Converted:
    """The same of tables, scale and bias of bytes, which are dequantized once they are gathered."""
    op, emit = relax.op, node.emit

    def read(rows: relax.Expr, position: int) -> relax.Expr:
        scale, zero = (emit(op.reshape(node.tensor(i), ())) for i in _TABLES[position])
        whole = emit(op.subtract(emit(op.astype(rows, "int32")), emit(op.astype(zero, "int32"))))
        return emit(op.multiply(emit(op.astype(whole, "float32")), emit(op.astype(scale, "float32"))))

    return _normalized(node, read)


def _normalized(node: Node, read: _Read, positions: int | None = None) -> Converted:
    op, emit = relax.op, node.emit
    total = _rows(node, read, 0, 2)
    if positions is not None and node.has(positions):
        total = emit(op.add(total, _rows(node, read, positions, 3)))
    else:
        total = emit(op.add(total, read(_first_rows(node), 3)))
    if node.has(1) and node.has(4):
        total = emit(op.add(total, _rows(node, read, 1, 4)))
    scale, bias = (read(node.tensor(i), i) for i in (5, 6))
    result = emit(op.nn.layer_norm(total, scale, bias, [2], node.attribute("epsilon", 1e-12)))
    if not node.has(7):
        return [result, emit(op.zeros([node.shape(0)[0]], "int32")), total]
    ones = emit(op.astype(emit(op.equal(node.tensor(7), scalar(1, node.dtype(7)))), "int32"))
    return [result, emit(op.sum(ones, [1])), total]


def _rows(node: Node, read: _Read, ids: int, table: int) -> relax.Expr:
    """The rows of a table that identifiers name; NaN of one that is out of range, which is checked besides."""
    found = bounded_indices(node, ids, node.shape(table)[:1])
    rows = node.emit(relax.op.take(node.tensor(table), found.tensor, 0, mode="clip"))
    numbers = read(rows, table)
    if found.inside is None:
        return numbers
    inside = node.emit(relax.op.reshape(found.inside, [*node.shape(ids), 1]))
    return node.emit(relax.op.where(inside, numbers, scalar(np.nan, numbers.struct_info.dtype)))


def _first_rows(node: Node) -> relax.Expr:
    """The table of positions as far as there are tokens."""
    length, rows = node.shape(0)[1], node.shape(3)[0]
    node.require_at_most(length, rows)
    places = node.emit(relax.op.arange(0, length, 1, "int64"))
    return node.emit(relax.op.take(node.tensor(3), places, 0, mode="clip"))


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "EmbedLayerNormalization": _embed_layer_normalization,
    "QEmbedLayerNormalization": _quantized_embed_layer_normalization,
}
"""Those of ONNX Runtime."""
