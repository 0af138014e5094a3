"""Quantized operators, by what they mean: numbers with a scale and a zero point.

Matmuls and convolutions of integers sum in integers, as ONNX Runtime does, so that results are equal to the last bit:
in int32, or in float32 where the weights are constants so small that every sum is a whole number below 2^24.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
from tvm import relax, te

from tkc.frontend.onnx.converters.pooling import convolved, fit_convolution
from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    as_float8,
    is_number,
    narrowed,
    normalized_axis,
    saturated,
    scalar,
    standard,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError, Value, shape_of
from tkc.frontend.pixels import extents

_EXACT_BELOW = 1 << 24
"""Whole numbers up to here, and their sums, are exact in float32."""


# One tensor


def along(node: Node, tensor: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scale or zero point per element of one axis, shaped to broadcast over the others.

    One for all elements is a vector of one: numbers without dimensions become literals, for which TVM simplifies
    ``x * a * b`` to ``x * (a * b)`` and ``(x + a) * b`` to ``x * b + a * b``, which round differently.
    """
    if tensor.struct_info.ndim > 1:
        return tensor
    if tensor.struct_info.ndim == 0 or is_number(shape_of(tensor, node.algebra)[0], 1):
        return node.emit(relax.op.reshape(tensor, [1] if rank else []))
    (size,) = shape_of(tensor, node.algebra)
    return node.emit(relax.op.reshape(tensor, [size if i == axis else 1 for i in range(rank)]))


def as_type(node: Node, position: int, dtype: str) -> relax.Expr:
    """An input in another type."""
    tensor = node.tensor(position)
    return tensor if tensor.struct_info.dtype == dtype else node.emit(relax.op.astype(tensor, dtype))


def shifted(node: Node, data: int, zero: int, axis: int, dtype: str = "int32") -> relax.Expr:
    """Numbers less their zero point, which is 0 where it is left out; exact in int32 and in float32."""
    wide = as_type(node, data, dtype)
    if not node.has(zero):
        return wide
    return node.emit(relax.op.subtract(wide, along(node, as_type(node, zero, dtype), node.rank(data), axis)))


def dequantized(node: Node, data: int, scale: int, zero: int, axis: int = 0) -> relax.Expr:
    """Numbers less their zero point, times their scale, in float32."""
    scales = along(node, as_type(node, scale, "float32"), node.rank(data), axis)
    return node.emit(relax.op.multiply(relax.op.astype(shifted(node, data, zero, axis), "float32"), scales))


def _rounded(node: Node, scaled: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Numbers rounded half to even, moved by a zero point in float32, and brought into the range of the type."""
    rounded = node.emit(relax.op.round(scaled))
    if zero is not None:
        rounded = node.emit(relax.op.add(rounded, zero))
    narrow = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(dtype.upper()))
    limits = ml_dtypes.iinfo(narrow)
    bounded = node.emit(relax.op.clip(rounded, float(limits.min), float(limits.max)))
    return relax.op.astype(bounded, WIDENED.get(dtype, dtype))


def requantized(
    node: Node, scaled: relax.Expr, zero: int, axis: int = 0, dtype: str | None = None, rank: int | None = None
) -> relax.Expr:
    """Numbers that are divided by their new scale already, as integers of the type of their zero point."""
    rank = scaled.struct_info.ndim if rank is None else rank
    offset = along(node, as_type(node, zero, "float32"), rank, axis) if node.has(zero) else None
    return _rounded(node, scaled, offset, dtype or (node.dtype(zero) if node.has(zero) else "uint8"))


def quantized(node: Node, result: relax.Expr, scale: int, zero: int, axis: int = 0) -> relax.Expr:
    """Numbers in float32 divided by a scale, as integers of the type of their zero point, or of input 0."""
    scales = along(node, as_type(node, scale, "float32"), result.struct_info.ndim, axis)
    ratio = node.emit(relax.op.divide(result, scales))
    return requantized(node, ratio, zero, axis, None if node.has(zero) else node.dtype(0))


def quantize_linear(node: Node) -> Converted:
    """Numbers divided by their scale, rounded half to even, moved by the zero point, and saturated.

    They are divided in float32 unless ``precision`` names another type.
    """
    dtype = _quantized_dtype(node)
    _fit_zero_point(node)
    asked = node.attribute("precision", 0)
    inner = _dtype_of(asked) if asked else "float32"
    ratio = node.emit(relax.op.divide(as_type(node, 0, inner), _spread(node, 1, inner)))
    if inner != "float32":
        ratio = node.emit(relax.op.astype(ratio, "float32"))
    if dtype in WIDENED and "float" in dtype:
        return narrowed(node, ratio, dtype)
    if dtype.startswith("float8"):  # whose zero point is 0
        return as_float8(node, ratio, dtype)
    return _rounded(node, ratio, _spread(node, 2, "float32") if node.has(2) else None, dtype)


def _dtype_of(data_type: int) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(data_type))


def _quantized_dtype(node: Node) -> str:
    zero = node.value(2)
    if zero is not None:
        return node.declared_dtype(2)
    dtype = _dtype_of(node.attribute("output_dtype", 0) or onnx.TensorProto.UINT8)
    if dtype not in DTYPES and dtype not in WIDENED:
        raise ConversionError(f"quantizes to {dtype}, which compiled models cannot hold; quantize to 8 bits")
    return dtype


def dequantize_linear(node: Node) -> Converted:
    """Numbers less their zero point, times their scale, in the type of the scale unless another is asked for."""
    asked = node.attribute("output_dtype", 0)
    dtype = _dtype_of(asked) if asked else node.dtype(1)
    data = node.tensor(0)
    _fit_zero_point(node)
    if node.has(2) and "float" not in node.dtype(0):
        data = relax.op.subtract(as_type(node, 0, "int32"), _spread(node, 2, "int32"))
    product = relax.op.multiply(node.emit(relax.op.astype(data, "float32")), _spread(node, 1, "float32"))
    return relax.op.astype(node.emit(product), dtype)


def _fit_zero_point(node: Node) -> None:
    """See to it that a zero point has the sizes of its scale, which may have an axis of 1 more or less."""
    if node.has(2) and node.rank(1) == node.rank(2):
        node.require_shape(2, node.shape(1))


def _spread(node: Node, position: int, dtype: str) -> relax.Expr:
    """Scales or zero points, one for all numbers, for an index of an axis, or for a block of an axis; to broadcast."""
    tensor = as_type(node, position, dtype)
    rank, axis, block = node.rank(0), node.attribute("axis", 1), node.attribute("block_size", 0)
    if not block:
        return along(node, tensor, rank, axis % rank if rank else 0)
    axis = normalized_axis(axis, rank)
    size, blocks = node.shape(0)[axis], node.shape(position)[axis]
    node.require_equal(blocks, node.algebra.simplify((size + block - 1) // block))

    if isinstance(size, int):
        repeated = node.emit(relax.op.repeat(tensor, block, axis))
        return node.emit(relax.op.strided_slice(repeated, [axis], [0], [size]))

    def compute(numbers: te.Tensor, size: Size) -> te.Tensor:
        """Of Relax's operators TVM states sizes in several forms, of which it fuses one alone."""
        shape = [size if i == axis else other for i, other in enumerate(numbers.shape)]
        return te.compute(
            extents(shape), lambda *at: numbers(*(p // block if i == axis else p for i, p in enumerate(at)))
        )

    return node.builder.emit_te(compute, tensor, size, primfunc_name_hint="repeat")


def dynamically_quantized(node: Node, data: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Numbers quantized to uint8 by a scale and a zero point, both float32, of their own range, which always holds 0.

    The scale of nothing but zeros is 1, as ONNX Runtime has it: the standard's formula would divide by 0.
    """
    zero, steps = scalar(0, "float32"), scalar(255, "float32")
    highest = node.emit(relax.op.maximum(relax.op.max(data), zero))
    lowest = node.emit(relax.op.minimum(relax.op.min(data), zero))
    extent = node.emit(relax.op.subtract(highest, lowest))
    is_flat = relax.op.equal(extent, zero)
    scale = node.emit(relax.op.where(is_flat, scalar(1, "float32"), relax.op.divide(extent, steps)))
    below = node.emit(relax.op.negative(relax.op.divide(lowest, scale)))
    offset = node.emit(relax.op.round(relax.op.clip(below, 0.0, 255.0)))
    return node.emit(_rounded(node, relax.op.divide(data, scale), offset, "uint8")), scale, offset


def _dynamic_quantize_linear(node: Node) -> Converted:
    codes, scale, offset = dynamically_quantized(node, node.tensor(0))
    return codes, scale, relax.op.astype(offset, "uint8")


# Matmuls and convolutions


def accumulator(node: Node, data: int, weight: int, zero: int, axis: int, summed: Sequence[int]) -> str:
    """The type in which products of 8 bits are summed over these axes of the weight: exact either way."""
    value, offset = node.value(weight), node.value(zero)
    codes, shift = looked_at(value), looked_at(offset)
    if codes is None or (shift is None and offset is not None) or node.dtype(data) not in ("int8", "uint8"):
        return "int32"
    whole = codes.astype("int64")
    if shift is not None:
        shape = [-1 if i == axis else 1 for i in range(whole.ndim)]
        whole = whole - (shift.reshape(shape) if shift.ndim == 1 and shift.size > 1 else shift).astype("int64")
    largest = np.abs(whole).sum(tuple(summed)).max(initial=0)
    return summed_in(int(largest), value, offset)


def summed_in(largest: int, *values: Value | None) -> str:
    """The type that holds sums of bytes times weights, of which ``values`` are made, that add up to ``largest``.

    int32 holds them whatever the weights are; for float32 these are read, unless they are to be exchangeable.
    """
    weights = [value.weight for value in values if value is not None and value.weight is not None]
    if largest * 255 >= _EXACT_BELOW or any(weight.exchangeable for weight in weights):
        return "int32"
    for weight in weights:
        weight.numbers()
    return "float32"


def looked_at(value: Value | None) -> np.ndarray | None:
    """The numbers of a constant input, for who decides what is right for any others, too."""
    return numbers(value) if value is None or value.weight is None else value.weight.array


def factor(node: Node, scales: Sequence[int], divisors: Sequence[int], alpha: float = 1.0) -> relax.Expr:
    """Scales multiplied, then divided, in float32.

    They are computed here where all are constants: LLVM may make ``(x * a) / b`` of ``x * (a / b)``.
    """
    values = {i: numbers(node.value(i)) for i in (*scales, *divisors)}
    first, *rest = scales
    if all(value is not None for value in values.values()):
        known = {i: np.asarray(value, "float32") for i, value in values.items()}
        result = known[first]
        for i in rest:
            result = result * known[i]
        result = result if alpha == 1.0 else result * np.float32(alpha)
        for i in divisors:
            result = result / known[i]
        return relax.const(np.asarray(result), "float32")
    total = as_type(node, first, "float32")
    for i in rest:
        total = node.emit(relax.op.multiply(total, as_type(node, i, "float32")))
    total = total if alpha == 1.0 else node.emit(relax.op.multiply(total, scalar(alpha, "float32")))
    for i in divisors:
        total = node.emit(relax.op.divide(total, as_type(node, i, "float32")))
    return total


def numbers(value: Value | None) -> np.ndarray | None:
    """The numbers of a constant input."""
    if value is None:
        return None
    if value.weight is not None:
        return value.weight.numbers()
    return None if value.known is None or value.known.symbolic else value.known.values


def matmul_scales(node: Node, left: int, right: int, divisors: Sequence[int], rank: int) -> relax.Expr:
    """The scales of a matmul's operands, per row of the left one and per column of the right one, over others."""
    if all(node.rank(i) <= 1 and is_number(node.algebra.product(node.shape(i)), 1) for i in (left, *divisors)):
        return along(node, factor(node, [left, right], divisors), rank, rank - 1)
    rows = along(node, as_type(node, left, "float32"), rank, rank - 2)
    total = node.emit(relax.op.multiply(rows, along(node, as_type(node, right, "float32"), rank, rank - 1)))
    for i in divisors:
        total = node.emit(relax.op.divide(total, along(node, as_type(node, i, "float32"), rank, rank - 2)))
    return total


def integer_matmul(node: Node, left: int, right: int, left_zero: int, right_zero: int) -> relax.Expr:
    """The product of two integer tensors less their zero points, per row and per column, in int32."""
    ranks = node.rank(left), node.rank(right)
    summed = [max(ranks[1] - 2, 0)]
    inner = accumulator(node, left, right, right_zero, ranks[1] - 1, summed)
    operands = [
        shifted(node, left, left_zero, max(ranks[0] - 2, 0), inner),
        shifted(node, right, right_zero, ranks[1] - 1, inner),
    ]
    return to_int32(node, node.emit(relax.op.matmul(*operands)))


def to_int32(node: Node, tensor: relax.Expr) -> relax.Expr:
    """Whole numbers in int32."""
    return tensor if tensor.struct_info.dtype == "int32" else node.emit(relax.op.astype(tensor, "int32"))


def _matmul_integer(node: Node) -> Converted:
    return integer_matmul(node, 0, 1, 2, 3)


def _qlinear_matmul(node: Node) -> Converted:
    if "float" in node.dtype(0):
        left = _dequantized_float8(node, 0, 1, node.rank(0) - 2)
        product = node.emit(relax.op.matmul(left, _dequantized_float8(node, 3, 4, node.rank(3) - 1)))
        scale = along(node, as_type(node, 6, "float32"), product.struct_info.ndim, product.struct_info.ndim - 2)
        return relax.op.astype(
            saturated(node, node.emit(relax.op.divide(product, scale)), node.dtype(7)), node.dtype(7)
        )
    total = integer_matmul(node, 0, 3, 2, 5)
    rank = total.struct_info.ndim
    scaled = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), matmul_scales(node, 1, 4, [6], rank)))
    return requantized(node, scaled, 7, rank - 2)


def _dequantized_float8(node: Node, data: int, scale: int, axis: int) -> relax.Expr:
    scales = along(node, as_type(node, scale, "float32"), node.rank(data), axis)
    return node.emit(relax.op.multiply(as_type(node, data, "float32"), scales))


def integer_convolution(node: Node, data: int, weight: int, data_zero: int, weight_zero: int) -> relax.Expr:
    """The convolution of integers less their zero points, which padding is equal to, in int32, which wraps around."""
    fit_convolution(node, data, weight)
    inner = accumulator(node, data, weight, weight_zero, 0, range(1, node.rank(weight)))
    operands = [
        shifted(node, data, data_zero, 1, inner),
        shifted(node, weight, weight_zero, 0, inner),
    ]
    return to_int32(node, node.emit(convolved(standard(node, "Conv", operands))))


def qlinear_conv(node: Node) -> Converted:
    """The bias is in int32, in units of both scales' product; so it is added before anything is rounded."""
    last = bool(node.attribute("channels_last", 0))
    if last:
        node = dataclasses.replace(node, inputs=[Value(expression=channels_first(node, 0)), *node.inputs[1:]])
    total = integer_convolution(node, 0, 3, 2, 5)
    rank = total.struct_info.ndim
    if node.has(8):
        total = node.emit(relax.op.add(total, along(node, as_type(node, 8, "int32"), rank, 1)))
    scales = along(node, factor(node, [1, 4], [6]), rank, 1)
    scaled = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), scales))
    result = requantized(node, scaled, 7, 1)
    return channels_last(node, node.emit(result)) if last else result


def channels_first(node: Node, position: int) -> relax.Expr:
    """An input whose channels come last, with them behind the batch."""
    rank = node.rank(position)
    return node.emit(relax.op.permute_dims(node.tensor(position), [0, rank - 1, *range(1, rank - 1)]))


def channels_last(node: Node, data: relax.Expr) -> relax.Expr:
    """The tensor with its channels, which come behind the batch, at the end."""
    return node.emit(relax.op.permute_dims(data, [0, *range(2, data.struct_info.ndim), 1]))


def _conv_integer(node: Node) -> Converted:
    return integer_convolution(node, 0, 1, 2, 3)


CONVERTERS: dict[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
