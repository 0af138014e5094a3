"""ONNX Runtime's quantized operators: sums, activations, pooling of integers with scales, and dynamic matmuls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.pooling import average_pool
from tkc.frontend.onnx.converters.quantization import (
    accumulator,
    along,
    as_type,
    channels_first,
    channels_last,
    dequantize_linear,
    dequantized,
    dynamically_quantized,
    factor,
    integer_matmul,
    matmul_scales,
    numbers,
    qlinear_conv,
    quantize_linear,
    quantized,
    requantized,
    shifted,
    to_int32,
)
from tkc.frontend.onnx.converters.shared import Converted, Converter, normalized_axis, scalar, size_scalar, standard
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import Value


def _qlinear_add(node: Node) -> Converted:
    """The sum of the dequantized numbers, each term divided by the scale of the result first."""
    terms = []
    for data, scale, zero in ((0, 1, 2), (3, 4, 5)):
        ratio = factor(node, [scale], [6])
        whole = shifted(node, data, zero, 0, "float32")
        terms.append(node.emit(relax.op.multiply(whole, along(node, ratio, node.rank(data), 0))))
    return requantized(node, node.emit(relax.op.add(*terms)), 7, dtype=node.dtype(0))


def _qlinear_mul(node: Node) -> Converted:
    """The product of whole numbers, times one factor of all scales."""
    left, right = shifted(node, 0, 2, 0, "float32"), shifted(node, 3, 5, 0, "float32")
    product = node.emit(relax.op.multiply(left, right))
    scaled = node.emit(relax.op.multiply(product, along(node, factor(node, [1, 4], [6]), node.rank(0), 0)))
    return requantized(node, scaled, 7, dtype=node.dtype(0))


def _activation(node: Node, function: Callable[[np.ndarray], np.ndarray]) -> relax.Expr | None:
    """A function of single numbers as a table of its 256 results; ``None`` where scales are no constants.

    The table is computed as ONNX Runtime computes its own, in float32 and in this order.
    """
    dtype = node.dtype(0)
    known = [numbers(node.value(i)) if node.has(i) else np.zeros((), dtype) for i in range(1, 5)]
    constants = [value for value in known if value is not None]
    if len(constants) < len(known):
        return None
    scale, zero, new_scale, new_zero = constants
    limits = np.iinfo(dtype)
    codes = np.arange(limits.min, limits.max + 1, dtype="int32")
    real = (codes - zero.astype("int32")).astype("float32") * scale
    quotient = np.rint(function(real) / new_scale) + new_zero.astype("float32")
    table = relax.const(np.clip(quotient, limits.min, limits.max).astype(dtype).ravel(), dtype)
    position = node.emit(relax.op.subtract(as_type(node, 0, "int32"), scalar(limits.min, "int32")))
    return relax.op.take(table, position, 0, mode="clip")


def _qlinear_sigmoid(node: Node) -> Converted:
    table = _activation(node, lambda x: 1 / (1 + np.exp(-x)))
    return table or quantized(node, node.emit(relax.op.sigmoid(dequantized(node, 0, 1, 2))), 3, 4)


def _qlinear_leaky_relu(node: Node) -> Converted:
    alpha = np.float32(node.attribute("alpha", 0.01))
    table = _activation(node, lambda x: np.where(x < 0, x * alpha, x))
    if table is not None:
        return table
    x = dequantized(node, 0, 1, 2)
    below = relax.op.less(x, scalar(0, "float32"))
    result = node.emit(relax.op.where(below, relax.op.multiply(x, scalar(float(alpha), "float32")), x))
    return quantized(node, result, 3, 4)


def _qlinear_average_pool(node: Node) -> Converted:
    last = bool(node.attribute("channels_last", 0))
    if last:
        node = dataclasses.replace(node, inputs=[Value(expression=channels_first(node, 0)), *node.inputs[1:]])
    data = dequantized(node, 0, 1, 2)
    pooled = node.emit(average_pool(standard(node, "AveragePool", [data])))
    result = quantized(node, pooled, 3, 4)
    return channels_last(node, node.emit(result)) if last else result


def _qlinear_global_average_pool(node: Node) -> Converted:
    """The sum of whole numbers in int32, times one factor of both scales and the size of the image."""
    rank = node.rank(0)
    axes = list(range(1, rank - 1) if node.attribute("channels_last", 0) else range(2, rank))
    total = node.emit(relax.op.sum(shifted(node, 0, 2, 0), axes, True))
    count = node.algebra.product([node.shape(0)[axis] for axis in axes])
    divisor = node.emit(relax.op.multiply(as_type(node, 3, "float32"), size_scalar(node, count, "float32")))
    ratio = node.emit(relax.op.divide(as_type(node, 1, "float32"), divisor))
    scaled = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), along(node, ratio, node.rank(0), 0)))
    return requantized(node, scaled, 4, dtype=node.dtype(0))


def _qlinear_concat(node: Node) -> Converted:
    """Parts of scales and zero points of their own, each quantized by those of the result, which come first."""
    parts = []
    for first in range(2, len(node.inputs), 3):
        real = dequantized(node, first, first + 1, first + 2)
        parts.append(node.emit(quantized(node, real, 0, 1)))
    return relax.op.concat(parts, normalized_axis(node.attribute("axis"), node.rank(2)))


def _qlinear_softmax(node: Node) -> Converted:
    """Before opset 13 over all axes from ``axis`` on, which the attribute ``opset`` says."""
    rank, data = node.rank(0), dequantized(node, 0, 1, 2)
    old = node.attribute("opset", 13) < 13
    axis = normalized_axis(node.attribute("axis", 1 if old else -1), rank)
    if not old:
        return quantized(node, node.emit(relax.op.nn.softmax(data, axis)), 3, 4)
    shape = node.shape(0)
    rows, columns = node.algebra.product(shape[:axis]), node.algebra.product(shape[axis:])
    flat = node.emit(relax.op.nn.softmax(node.emit(relax.op.reshape(data, [rows, columns])), 1))
    return quantized(node, node.emit(relax.op.reshape(flat, shape)), 3, 4)


def _qlinear_where(node: Node) -> Converted:
    parts = [node.emit(quantized(node, dequantized(node, i, i + 1, i + 2), 7, 8)) for i in (1, 4)]
    return relax.op.where(node.tensor(0), *parts)


def _qgemm(node: Node) -> Converted:
    """The Gemm of integers, with a bias in units of both scales; in float32 where the result has no scale."""
    operands = []
    weight_axis = 0 if node.attribute("transB", 0) else 1
    inner = accumulator(node, 0, 3, 5, weight_axis, [1 - weight_axis])
    for data, zero, axis, flag in ((0, 2, 0, "transA"), (3, 5, weight_axis, "transB")):
        tensor = shifted(node, data, zero, axis, inner)
        operands.append(node.emit(relax.op.permute_dims(tensor, [1, 0])) if node.attribute(flag, 0) else tensor)
    total = to_int32(node, node.emit(relax.op.matmul(*operands)))
    if node.has(6):
        total = node.emit(relax.op.add(total, as_type(node, 6, "int32")))
    scales = along(node, factor(node, [1, 4], [7] if node.has(7) else [], node.attribute("alpha", 1.0)), 2, 1)
    result = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), scales))
    return requantized(node, result, 8, dtype=node.dtype(0)) if node.has(7) else result


def _matmul_integer_to_float(node: Node) -> Converted:
    """A, B, their scales, zero points, and a bias in float32."""
    total = integer_matmul(node, 0, 1, 4, 5)
    dtype, rank = node.dtype(2), total.struct_info.ndim
    result = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), matmul_scales(node, 2, 3, [], rank)))
    result = result if not node.has(6) else node.emit(relax.op.add(result, as_type(node, 6, "float32")))
    return relax.op.astype(result, dtype)


def _dynamic_quantize_matmul(node: Node) -> Converted:
    """A in float32, quantized by its own range; B, its scale and zero point, and a bias."""
    codes, scale, offset = dynamically_quantized(node, node.tensor(0))
    whole = node.emit(relax.op.subtract(relax.op.astype(codes, "int32"), relax.op.astype(offset, "int32")))
    rank = node.rank(1)
    product = node.emit(relax.op.matmul(whole, shifted(node, 1, 3, rank - 1)))
    scales = node.emit(relax.op.multiply(scale, along(node, as_type(node, 2, "float32"), rank, rank - 1)))
    result = node.emit(relax.op.multiply(relax.op.astype(product, "float32"), scales))
    return result if not node.has(4) else relax.op.add(result, node.tensor(4))


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "QGemm": _qgemm,
    "QLinearAdd": _qlinear_add,
    "QLinearAveragePool": _qlinear_average_pool,
    "QLinearConcat": _qlinear_concat,
    "QLinearConv": qlinear_conv,
    "QLinearGlobalAveragePool": _qlinear_global_average_pool,
    "QLinearLeakyRelu": _qlinear_leaky_relu,
    "QLinearMul": _qlinear_mul,
    "QLinearSigmoid": _qlinear_sigmoid,
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearWhere": _qlinear_where,
    "QuantizeLinear": quantize_linear,
}
"""Those of ONNX Runtime."""
