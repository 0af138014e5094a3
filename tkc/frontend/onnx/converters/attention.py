"""Attention, as matrix products around a softmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    is_number,
    scalar,
    size_scalar,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError, shape_of


def _attention(node: Node) -> Converted:
    """Scaled dot-product attention, as matrix products around a softmax, with the heads split and repeated."""
    query, key, value = (_heads(node, 0, "q_num_heads"), *(_heads(node, i, "kv_num_heads") for i in (1, 2)))
    if node.has(4):
        key = node.emit(relax.op.concat([node.tensor(4), key], 2))
    if node.has(5):
        value = node.emit(relax.op.concat([node.tensor(5), value], 2))
    present = key, value
    heads, width = _fixed_heads(node, query), shape_of(query, node.algebra)[3]
    scores_dtype = node.dtype(0)
    scale = node.attribute("scale", 1.0 / float(width) ** 0.5)
    transposed = relax.op.permute_dims(_repeat_heads(node, key, heads), [0, 1, 3, 2])
    scores = node.emit(relax.op.matmul(query, node.emit(transposed)))
    scores = node.emit(relax.op.multiply(scores, scalar(scale, scores_dtype)))
    traced = {0: scores}
    cap = node.attribute("softcap", 0.0)
    if cap:
        bounded = relax.op.tanh(relax.op.divide(scores, scalar(cap, scores_dtype)))
        scores = node.emit(relax.op.multiply(bounded, scalar(cap, scores_dtype)))
    traced[1] = scores
    scores = traced[2] = _masked(node, scores)
    weights = traced[3] = node.emit(_softmax(node, scores))
    result = node.emit(relax.op.matmul(weights, _repeat_heads(node, value, heads)))
    if node.rank(0) == 3:
        batch, _, length, depth = shape_of(result, node.algebra)
        result = node.emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
        result = relax.op.reshape(result, [batch, length, node.algebra.simplify(heads * depth)])
    return result, *present, traced[node.attribute("qk_matmul_output_mode", 0)]


def _heads(node: Node, position: int, attribute: str) -> relax.Expr:
    """Queries, keys or values as (batch, heads, length, width)."""
    if node.rank(position) == 4:
        return node.tensor(position)
    batch, length, hidden = node.shape(position)
    count = node.attribute(attribute)
    sizes = [batch, length, count, node.algebra.simplify(hidden // count)]
    split = node.emit(relax.op.reshape(node.tensor(position), sizes))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _fixed_heads(node: Node, tensor: relax.Expr) -> int:
    heads, width = shape_of(tensor, node.algebra)[1::2]
    if not isinstance(heads, int) or not isinstance(width, int):
        raise ConversionError("needs a fixed number of heads of a fixed width; export the model with fixed sizes there")
    return heads


def _repeat_heads(node: Node, tensor: relax.Expr, heads: int) -> relax.Expr:
    groups = heads // _fixed_heads(node, tensor)
    return tensor if groups == 1 else node.emit(relax.op.repeat(tensor, groups, 1))


def _masked(node: Node, scores: relax.Expr) -> relax.Expr:
    """The scores with the mask added, and negative infinity where a key is hidden."""
    dtype = scores.struct_info.dtype
    lowest = scalar(-np.inf, dtype)
    keys = shape_of(scores, node.algebra)[3]
    if node.has(3) and node.dtype(3) != "bool":
        scores = node.emit(relax.op.add(scores, _widen_mask(node, keys, -np.inf)))
    elif node.has(3):
        scores = node.emit(relax.op.where(_widen_mask(node, keys, False), scores, lowest))
    for visible in _visible_keys(node, scores):
        scores = node.emit(relax.op.where(node.emit(visible), scores, lowest))
    return scores


def _visible_keys(node: Node, scores: relax.Expr) -> Iterator[relax.Expr]:
    """Conditions on keys, each to broadcast over (batch, heads, queries, keys): causality, windows, padding."""
    queries, keys = shape_of(scores, node.algebra)[2:]
    past = node.shape(4)[2] if node.has(4) else 0
    column = node.emit(relax.op.arange(0, keys, 1, "int64"))
    row = node.emit(relax.op.arange(past, node.algebra.simplify(past + queries), 1, "int64"))
    row = node.emit(relax.op.reshape(row, [queries, 1]))
    if node.has(6):
        lengths = node.emit(relax.op.reshape(node.tensor(6), [node.shape(6)[0], 1, 1, 1]))
        row = node.emit(relax.op.add(row, relax.op.subtract(lengths, size_scalar(node, queries, "int64"))))
        yield relax.op.less(column, lengths)
    if node.attribute("is_causal", 0):
        yield relax.op.less_equal(column, row)
    left, right = (node.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    if left >= 0:
        yield relax.op.greater_equal(column, relax.op.subtract(row, scalar(left, "int64")))
    if right >= 0:
        yield relax.op.less_equal(column, relax.op.add(row, scalar(right, "int64")))


def _widen_mask(node: Node, keys: Size, fill: float) -> relax.Expr:
    """The mask, filled up to the number of keys where it is shorter, as the standard allows."""
    shape = node.shape(3)
    missing = node.algebra.simplify(keys - shape[-1])
    if is_number(missing, 0) or is_number(shape[-1], 1):
        return node.tensor(3)
    rest = relax.op.full([*shape[:-1], missing], scalar(fill, node.dtype(3)), node.dtype(3))
    return node.emit(relax.op.concat([node.tensor(3), node.emit(rest)], -1))


def _softmax(node: Node, scores: relax.Expr) -> relax.Expr:
    """Softmax over the keys, in the precision asked for; 0 for a query that a mask leaves without keys."""
    dtype = scores.struct_info.dtype
    precision = node.attribute("softmax_precision")
    inner = dtype if precision is None else str(onnx.helper.tensor_dtype_to_np_dtype(precision))
    if inner != dtype:
        scores = node.emit(relax.op.astype(scores, inner))
    weights = node.emit(relax.op.nn.softmax(scores, -1))
    if node.has(3) or node.has(6):
        comparable = weights if inner in EXACT else node.emit(relax.op.astype(weights, "float32"))
        weights = node.emit(relax.op.where(relax.op.isnan(comparable), scalar(0, inner), weights))
    return relax.op.astype(weights, dtype) if inner != dtype else weights


CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
}
