"""ONNX Runtime's MoE: each row goes through the experts that its router chooses.

Here all rows go through all experts, and what those that are not chosen give has the weight 0: right, and slower by as
many experts as there are for each that is chosen.
"""

from __future__ import annotations

import math

from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


def _experts(node: Node) -> Converted:
    """Input, router's logits, the first weights ``[experts, inner, hidden]`` and biases, the second ones and biases."""
    op, emit = relax.op, node.emit
    kind = node.attribute("activation_type", "relu")
    if kind not in _ACTIVATIONS:
        raise ConversionError(f"has the activation {kind!r}; expected one of {', '.join(_ACTIVATIONS)}")
    if node.has(6) or node.has(7):
        raise ConversionError(
            "has third weights, which gate the first; fuse them into the first ones (swiglu_fusion=1)"
        )
    if node.attribute("use_sparse_mixer", 0):
        raise ConversionError("chooses experts by the sparse mixer; export it with the top-k router")
    if kind == "swiglu" and node.attribute("swiglu_fusion", 0) != 1:
        raise ConversionError("has swiglu with gates that do not alternate with values; expected swiglu_fusion=1")
    shape, dtype = node.shape(0), node.dtype(0)
    hidden = node.shape(2)[2]
    rows = emit(op.reshape(_as(node, node.tensor(0), "float32"), [-1, hidden]))
    inner = _product(node, rows, 2, 3)
    activated = _activated(node, inner, kind)
    outputs = _product(node, activated, 4, 5)
    weights = emit(op.expand_dims(emit(op.permute_dims(_weights(node), [1, 0])), [2]))
    total = emit(op.sum(emit(op.multiply(outputs, weights)), [0]))
    return _as(node, emit(op.reshape(total, shape)), dtype)


def _as(node: Node, tensor: relax.Expr, dtype: str) -> relax.Expr:
    return tensor if tensor.struct_info.dtype == dtype else node.emit(relax.op.astype(tensor, dtype))


def _product(node: Node, rows: relax.Expr, weights: int, bias: int) -> relax.Expr:
    """What all experts make of ``rows [(experts,) rows, n]``: ``[experts, rows, m]``."""
    op, emit = relax.op, node.emit
    turned = emit(op.permute_dims(_as(node, node.tensor(weights), "float32"), [0, 2, 1]))
    product = emit(op.matmul(rows, turned))
    if not node.has(bias):
        return product
    return emit(op.add(product, emit(op.expand_dims(_as(node, node.tensor(bias), "float32"), [1]))))


def _activated(node: Node, inner: relax.Expr, kind: str) -> relax.Expr:
    op, emit = relax.op, node.emit
    if kind == "identity":
        return inner
    if kind != "swiglu":
        return emit({"relu": op.nn.relu, "gelu": op.nn.gelu_tanh, "silu": op.nn.silu}[kind](inner))
    width = node.shape(2)[1]
    gates, values = (emit(op.strided_slice(inner, [2], [start], [width], [2])) for start in (0, 1))
    limit = node.attribute("swiglu_limit", math.inf)
    if math.isfinite(limit):
        gates = emit(op.minimum(gates, scalar(limit, "float32")))
        values = emit(op.clip(values, -limit, limit))
    alpha, beta = node.attribute("activation_alpha", 1.0), node.attribute("activation_beta", 0.0)
    sigmoid = emit(op.sigmoid(emit(op.multiply(gates, scalar(alpha, "float32")))))
    return emit(op.multiply(emit(op.multiply(gates, sigmoid)), emit(op.add(values, scalar(beta, "float32")))))


def _weights(node: Node) -> relax.Expr:
    """The weight of each expert for each row, ``[rows, experts]``: of the ``k`` likeliest, 0 of the others."""
    op, emit = relax.op, node.emit
    logits = _as(node, node.tensor(1), "float32")
    chances = emit(op.nn.softmax(logits, -1))
    count = node.attribute("k", 1)
    chosen = emit(op.topk(chances, count, -1, "indices", True, "int64"))
    experts = emit(op.arange(0, node.shape(1)[-1], 1, "int64"))
    same = emit(op.equal(emit(op.expand_dims(chosen, [2])), experts))
    weights = emit(op.multiply(chances, emit(op.sum(emit(op.astype(same, "float32")), [1]))))
    if not node.attribute("normalize_routing_weights", 0):
        return weights
    return emit(op.divide(weights, emit(op.sum(weights, [1], True))))


MICROSOFT_CONVERTERS: dict[str, Converter] = {"MoE": _experts}
