"""Quantized operators, by what they mean: numbers with a scale and a zero point."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    is_number,
    normalized_axis,
    saturated,
    scalar,
    with_inputs,
)
from tkc.frontend.onnx.graph import ConversionError, Node, shape_of
from tkc.frontend.onnx.signature import DTYPES


def _along(node: Node, tensor: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scale or zero point per element of one axis, shaped to broadcast over the others."""
    if tensor.struct_info.ndim != 1:
        return tensor
    (size,) = shape_of(tensor, node.algebra)
    if is_number(size, 1):
        return node.emit(relax.op.reshape(tensor, ()))
    return node.emit(relax.op.reshape(tensor, [size if i == axis else 1 for i in range(rank)]))


def _dequantized(node: Node, data: int, scale: int, zero: int, axis: int) -> relax.Expr:
    rank = node.rank(data)
    wide = relax.op.astype(node.tensor(data), "int32")
    offset = relax.op.astype(_along(node, node.tensor(zero), rank, axis), "int32")
    difference = node.emit(relax.op.astype(relax.op.subtract(wide, offset), "float32"))
    factor = relax.op.astype(_along(node, node.tensor(scale), rank, axis), "float32")
    return node.emit(relax.op.multiply(difference, factor))


def _quantized(node: Node, result: relax.Expr, scale: int, zero: int, axis: int) -> relax.Expr:
    dtype, rank = node.dtype(zero), result.struct_info.ndim
    factor = relax.op.astype(_along(node, node.tensor(scale), rank, axis), "float32")
    offset = relax.op.astype(_along(node, node.tensor(zero), rank, axis), "float32")
    rounded = relax.op.add(relax.op.round(relax.op.divide(result, factor)), offset)
    limits = np.iinfo(dtype)
    return relax.op.astype(relax.op.clip(node.emit(rounded), float(limits.min), float(limits.max)), dtype)


def _quantize_linear(node: Node) -> Converted:
    """Numbers divided by their scale, rounded half to even, moved by the zero point, and saturated."""
    dtype = _quantized_dtype(node)
    ratio = relax.op.divide(relax.op.astype(node.tensor(0), "float32"), _spread(node, 1, "float32"))
    if dtype.startswith("float8"):  # whose zero point is 0
        data = saturated(node, ratio, dtype) if node.attribute("saturate", 1) else ratio
        return relax.op.astype(data, dtype)
    rounded = relax.op.round(ratio)
    if node.has(2):
        rounded = relax.op.add(rounded, _spread(node, 2, "float32"))
    limits = np.iinfo(dtype)
    return relax.op.astype(relax.op.clip(node.emit(rounded), float(limits.min), float(limits.max)), dtype)


def _dynamic_quantize_linear(node: Node) -> Converted:
    """Numbers quantized to uint8 by a scale and a zero point of their own range, which always holds 0.

    The scale of nothing but zeros is 1, as ONNX Runtime has it: the standard's formula would divide by 0.
    """
    data, zero, steps = node.tensor(0), scalar(0, "float32"), scalar(255, "float32")
    highest = node.emit(relax.op.maximum(relax.op.max(data), zero))
    lowest = node.emit(relax.op.minimum(relax.op.min(data), zero))
    extent = node.emit(relax.op.subtract(highest, lowest))
    is_flat = relax.op.equal(extent, zero)
    scale = node.emit(relax.op.where(is_flat, scalar(1, "float32"), relax.op.divide(extent, steps)))
    ends = (0.0, 255.0)
    offset = node.emit(
        relax.op.round(relax.op.clip(node.emit(relax.op.negative(relax.op.divide(lowest, scale))), *ends))
    )
    rounded = relax.op.add(relax.op.round(relax.op.divide(data, scale)), offset)
    quantized = relax.op.astype(relax.op.clip(node.emit(rounded), *ends), "uint8")
    return quantized, scale, relax.op.astype(offset, "uint8")


def _quantized_dtype(node: Node) -> str:
    if node.has(2):
        return node.dtype(2)
    asked = node.attribute("output_dtype", 0) or onnx.TensorProto.UINT8
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(asked))
    if dtype not in DTYPES:
        raise ConversionError(f"quantizes to {dtype}, which compiled models cannot hold; quantize to 8 bits")
    return dtype


def _dequantize_linear(node: Node) -> Converted:
    """Numbers less their zero point, times their scale, in the type of the scale unless another is asked for."""
    asked = node.attribute("output_dtype", 0)
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(asked)) if asked else node.dtype(1)
    data = node.tensor(0)
    if node.has(2) and "float" not in node.dtype(0):
        data = relax.op.subtract(relax.op.astype(data, "int32"), _spread(node, 2, "int32"))
    product = relax.op.multiply(node.emit(relax.op.astype(data, "float32")), _spread(node, 1, "float32"))
    return relax.op.astype(node.emit(product), dtype)


def _spread(node: Node, position: int, dtype: str) -> relax.Expr:
    """Scales or zero points, one for all numbers, for an index of an axis, or for a block of an axis; to broadcast."""
    tensor = node.emit(relax.op.astype(node.tensor(position), dtype))
    rank, axis, block = node.rank(0), node.attribute("axis", 1), node.attribute("block_size", 0)
    if not block:
        return _along(node, tensor, rank, axis % rank if rank else 0)
    axis = normalized_axis(axis, rank)
    repeated = node.emit(relax.op.repeat(tensor, block, axis))
    return node.emit(relax.op.strided_slice(repeated, [axis], [0], [node.shape(0)[axis]]))


def _qlinear_matmul(node: Node) -> Converted:
    left = _dequantized(node, 0, 1, 2, node.rank(0) - 2)
    right = _dequantized(node, 3, 4, 5, node.rank(3) - 1)
    product = node.emit(relax.op.matmul(left, right))
    return _quantized(node, product, 6, 7, product.struct_info.ndim - 2)


def _qlinear_conv(node: Node) -> Converted:
    data, weight = _dequantized(node, 0, 1, 2, 1), _dequantized(node, 3, 4, 5, 0)
    result = node.emit(with_inputs(node, [data, weight]).stock("Conv"))
    if node.has(8):
        scale = relax.op.multiply(node.tensor(1), node.tensor(4))
        bias = node.emit(relax.op.multiply(relax.op.astype(node.tensor(8), "float32"), scale))
        result = node.emit(relax.op.add(result, _along(node, bias, node.rank(0), 1)))
    return _quantized(node, result, 6, 7, 1)


def _conv_integer(node: Node) -> Converted:
    """The convolution of whole numbers less their zero points, in int32, which wraps around."""
    operands = [_shifted(node, i, 2 + i, axis) for i, axis in ((0, 1), (1, 0))]
    return with_inputs(node, operands).stock("Conv")


def _shifted(node: Node, data: int, zero: int, axis: int) -> relax.Expr:
    """Numbers less their zero point, as int32."""
    wide = node.emit(relax.op.astype(node.tensor(data), "int32"))
    if not node.has(zero):
        return wide
    offset = relax.op.astype(_along(node, node.tensor(zero), node.rank(data), axis), "int32")
    return node.emit(relax.op.subtract(wide, offset))


CONVERTERS: dict[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize_linear,
}
