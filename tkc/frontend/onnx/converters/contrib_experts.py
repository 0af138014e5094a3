"""ONNX Runtime's MoE and QMoE: each row goes through the experts that its router chooses.

Here all rows go through all experts, and what those that are not chosen give has the weight 0: right, and slower by as
many experts as there are for each that is chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import relax

from tkc.frontend.onnx.converters.contrib_blocks import dequantized_blocks, unpacked
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


@dataclass
class _Layer:
    """A product of every expert: weights ``[experts, m, n]`` and biases ``[experts, m]``."""

    weights: relax.Expr
    bias: relax.Expr | None


def _experts(node: Node) -> Converted:
    """Input, router's logits, the first weights ``[experts, inner, hidden]`` and biases, the second ones and biases."""
    first, second, gates = (_plain(node, position) for position in (2, 4, 6))
    assert first is not None and second is not None
    normalized = bool(node.attribute("normalize_routing_weights", 0))
    return _computed(node, first, second, gates, _weights(node, None, normalized))


def _quantized_experts(node: Node) -> Converted:
    """The same of weights of 2, 4 or 8 bits, packed from the lowest bits on, with scales of rows or of blocks."""
    kind, packed = node.attribute("quant_type", "int"), node.attribute("weights_prepacked", -1)
    if kind != "int":
        raise ConversionError(f"has weights of quant_type {kind!r}; export them as integers (quant_type 'int')")
    if packed == 1:
        raise ConversionError("has weights that are prepacked for one execution provider; export them as they are")
    if any(node.has(position) for position in range(15, 21)):
        raise ConversionError("has scales of activations or of all weights; export weights with scales of their own")
    if node.attribute("swiglu_limit_after_activation", 0):
        raise ConversionError("clamps activated gates (swiglu_limit_after_activation); clamp the gates")
    layers = (_of_few_bits(node, *each) for each in ((2, 11, "fc1"), (5, 12, "fc2"), (8, 13, "fc3")))
    first, second, gates = layers
    if first is None or second is None:
        raise ConversionError("lacks the weights of a layer; correct the model")
    given = _as(node, node.tensor(14), "float32") if node.has(14) else None
    # Of the logits alone ONNX Runtime takes the softmax of those that are chosen, whatever the attribute says.
    normalized = given is None or bool(node.attribute("normalize_routing_weights", 0))
    return _computed(node, first, second, gates, _weights(node, given, normalized))


def _computed(node: Node, first: _Layer, second: _Layer, gates: _Layer | None, weights: relax.Expr) -> Converted:
    op, emit = relax.op, node.emit
    kind = node.attribute("activation_type", "relu")
    if kind not in _ACTIVATIONS:
        raise ConversionError(f"has the activation {kind!r}; expected one of {', '.join(_ACTIVATIONS)}")
    if gates is not None:
        raise ConversionError(
            "has third weights, which gate the first; fuse them into the first ones (swiglu_fusion=1)"
        )
    if node.attribute("use_sparse_mixer", 0):
        raise ConversionError("chooses experts by the sparse mixer; export it with the top-k router")
    if kind == "swiglu" and node.attribute("swiglu_fusion", 0) not in (1, 2):
        raise ConversionError("has swiglu whose gates are not beside the values; expected swiglu_fusion=1 or 2")
    shape, dtype = node.shape(0), node.dtype(0)
    hidden = shape_of(first.weights, node.algebra)[2]
    rows = emit(op.reshape(_as(node, node.tensor(0), "float32"), [-1, hidden]))
    activated = _activated(node, _product(node, rows, first), kind)
    outputs = _product(node, activated, second)
    spread = emit(op.expand_dims(emit(op.permute_dims(weights, [1, 0])), [2]))
    total = emit(op.sum(emit(op.multiply(outputs, spread)), [0]))
    return _as(node, emit(op.reshape(total, shape)), dtype)


def _plain(node: Node, position: int) -> _Layer | None:
    if not node.has(position):
        return None
    bias = node.tensor(position + 1) if node.has(position + 1) else None
    return _Layer(_as(node, node.tensor(position), "float32"), bias)


def _of_few_bits(node: Node, position: int, zero: int, name: str) -> _Layer | None:
    """A layer from its codes, the scales and the bias behind them, and its zero points."""
    if not node.has(position):
        return None
    bits = node.attribute(f"{name}_expert_weight_bits", 0) or node.attribute("expert_weight_bits", 4)
    if bits not in (2, 4, 8) or not node.has(position + 1):
        raise ConversionError(f"has weights of {bits} bits, or none of their scales; expected 2, 4 or 8 bits")
    codes = unpacked(node, node.tensor(position), bits)
    experts, rows, width = shape_of(codes, node.algebra)
    scales, zeros = node.tensor(position + 1), None
    block = node.attribute("block_size", 0)
    if not block:
        if not isinstance(width, int):
            raise ConversionError("needs weights of fixed sizes; export the model with fixed sizes there")
        block = width
    blocks = shape_of(scales, node.algebra)[2] if scales.struct_info.ndim == 3 else 1
    scales = node.emit(relax.op.reshape(scales, [experts, rows, blocks]))
    if node.has(zero):
        zeros = unpacked(node, node.tensor(zero), bits)
        last, count = zeros.struct_info.ndim - 1, blocks if zeros.struct_info.ndim == 3 else rows
        zeros = node.emit(relax.op.strided_slice(zeros, [last], [0], [count], assume_inbound=True))
        zeros = node.emit(relax.op.reshape(zeros, [experts, rows, blocks]))
    weights = dequantized_blocks(node, codes, scales, zeros, block, 1 << (bits - 1), 2)
    return _Layer(weights, node.tensor(position + 2) if node.has(position + 2) else None)


def _as(node: Node, tensor: relax.Expr, dtype: str) -> relax.Expr:
    return tensor if tensor.struct_info.dtype == dtype else node.emit(relax.op.astype(tensor, dtype))


def _product(node: Node, rows: relax.Expr, layer: _Layer) -> relax.Expr:
    """What all experts make of ``rows [(experts,) rows, n]``: ``[experts, rows, m]``."""
    op, emit = relax.op, node.emit
    product = emit(op.matmul(rows, emit(op.permute_dims(layer.weights, [0, 2, 1]))))
    if layer.bias is None:
        return product
    return emit(op.add(product, emit(op.expand_dims(_as(node, layer.bias, "float32"), [1]))))


def _activated(node: Node, inner: relax.Expr, kind: str) -> relax.Expr:
    op, emit = relax.op, node.emit
    if kind == "identity":
        return inner
    if kind != "swiglu":
        return emit({"relu": op.nn.relu, "gelu": op.nn.gelu_tanh, "silu": op.nn.silu}[kind](inner))
    width = shape_of(inner, node.algebra)[2]
    half = node.algebra.divide(width, 2)
    if node.attribute("swiglu_fusion", 0) == 1:  # they alternate
        gates, values = (emit(op.strided_slice(inner, [2], [start], [width], [2])) for start in (0, 1))
    else:
        pairs = ((0, half), (half, width))
        gates, values = (
            emit(op.strided_slice(inner, [2], [start], [end], assume_inbound=True)) for start, end in pairs
        )
    limit = node.attribute("swiglu_limit", math.inf)
    if math.isfinite(limit):
        gates = emit(op.minimum(gates, scalar(limit, "float32")))
        values = emit(op.clip(values, -limit, limit))
    alpha, beta = node.attribute("activation_alpha", 1.0), node.attribute("activation_beta", 0.0)
    sigmoid = emit(op.sigmoid(emit(op.multiply(gates, scalar(alpha, "float32")))))
    return emit(op.multiply(emit(op.multiply(gates, sigmoid)), emit(op.add(values, scalar(beta, "float32")))))


def _weights(node: Node, given: relax.Expr | None, normalized: bool) -> relax.Expr:
    """The weight of each expert for each row, ``[rows, experts]``: of the ``k`` likeliest, 0 of the others.

    ``given`` are weights by which outputs are added up, where the logits only choose.
    """
    op, emit = relax.op, node.emit
    logits = _as(node, node.tensor(1), "float32")
    chances = emit(op.nn.softmax(logits, -1))
    chosen = emit(op.topk(chances, node.attribute("k", 1), -1, "indices", True, "int64"))
    experts = emit(op.arange(0, node.shape(1)[-1], 1, "int64"))
    same = emit(op.equal(emit(op.expand_dims(chosen, [2])), experts))
    among = emit(op.sum(emit(op.astype(same, "float32")), [1]))
    weights = emit(op.multiply(chances if given is None else given, among))
    if not normalized:
        return weights
    return emit(op.divide(weights, emit(op.sum(weights, [1], True))))


MICROSOFT_CONVERTERS: dict[str, Converter] = {"MoE": _experts, "QMoE": _quantized_experts}
"""Those of ONNX Runtime."""
