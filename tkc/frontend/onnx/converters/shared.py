"""What the converters have in common: numbers, axes and sizes as Relax wants them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import onnx
from tvm import relax

from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import WIDENED
from tkc.frontend.onnx.sizes import Known, Size, pack_sizes
from tkc.frontend.onnx.values import ConversionError, Value, expression_of
from tkc.passes.lowering.lower_float8_casts import FORMATS

Converted: TypeAlias = relax.Expr | Sequence[relax.Expr] | Known
Converter: TypeAlias = Callable[[Node], Converted]

EXACT = frozenset({"float32", "float64"})
"""Floats that mathematical functions compute in as they are."""


NEWEST_OPSET = 21
"""The opset whose meaning standard operators have that another domain's operators are made of."""


def scalar(value: float | bool, dtype: str) -> relax.Constant:
    """A number as Relax constant without dimensions."""
    return relax.const(value, dtype)


def normalized_axis(axis: int, rank: int) -> int:
    """The axis, counted from the front."""
    if not -rank <= axis < rank:
        raise ConversionError(f"has axis {axis} for a tensor of {rank} dimensions; correct the model")
    return axis % rank


def size_vector(node: Node, sizes: Sequence[Size]) -> relax.Expr:
    """Sizes as a tensor."""
    return expression_of(Value(pack_sizes(sizes)), node.builder)


def require_pixels(node: Node) -> None:
    """See to it that the images of input 0, ``[N, C, ...]``, have elements along each axis behind the channels."""
    for size in node.shape(0)[2:]:
        node.require_at_least(size, 1)


def fixed_length(node: Node, position: int) -> int:
    """The fixed number of elements of a vector."""
    shape = node.shape(position)
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise ConversionError(
            f"needs input {position} ({node.proto.input[position]}) to be a vector of fixed length; "
            "export the model with fixed sizes there"
        )
    return shape[0]


def is_number(size: Size, value: int) -> bool:
    """Whether a size is fixed, and this number."""
    return isinstance(size, int) and size == value


def at_run_time(node: Node, *positions: int) -> bool:
    """Whether one of these inputs is given, but known to the running model alone."""
    return any(node.has(position) and node.sizes(position) is None for position in positions)


def size_scalar(node: Node, size: Size, dtype: str) -> relax.Expr:
    """A size as a tensor without dimensions."""
    if isinstance(size, int):
        return scalar(size, dtype)
    number = node.emit(relax.op.reshape(size_vector(node, [size]), ()))
    return number if dtype == "int64" else node.emit(relax.op.astype(number, dtype))


def counted_from_front(node: Node, indices: relax.Expr, size: Size) -> relax.Expr:
    """Indices into an axis, with negative ones counted from the end."""
    length = size_scalar(node, size, indices.struct_info.dtype)
    negative = relax.op.less(indices, scalar(0, indices.struct_info.dtype))
    return node.emit(relax.op.where(negative, relax.op.add(indices, length), indices))


def with_inputs(node: Node, inputs: Sequence[relax.Expr]) -> Node:
    """The same node over other tensors."""
    return dataclasses.replace(node, inputs=[Value(expression=tensor) for tensor in inputs])


def standard(
    node: Node, operator: str, inputs: Sequence[relax.Expr], attributes: Mapping[str, Any] | None = None
) -> Node:
    """A standard operator's node of this one's name, over other tensors, with this one's attributes or others."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain, proto.op_type = "", operator
    given = node.attributes if attributes is None else attributes
    return dataclasses.replace(with_inputs(node, inputs), proto=proto, attributes=given, opset=NEWEST_OPSET)


def narrowed(node: Node, data: relax.Expr, dtype: str) -> relax.Expr:
    """The numbers that a type narrower than a byte makes of others, in the type that holds them.

    Of integers the lower bits are kept, of floats those of the whole part; as float4_e2m1fn, numbers are rounded to the
    nearest, half to even, and large ones are the largest. NaN, which it lacks, is -0.0, as ONNX's reference has it.
    """
    wide, given = WIDENED[dtype], data.struct_info.dtype
    if dtype == "float4_e2m1fn":
        return node.emit(relax.op.astype(_in_four_bits(node, data), wide))
    if "float" in given:  # 32 bits, of which the lower ones are those of any width; a float's whole part
        data = node.emit(relax.op.astype(data, "float32" if given not in EXACT else given))
        data = node.emit(relax.op.astype(data, "int32"))
    bits = ml_dtypes.iinfo(dtype).bits
    lower = node.emit(relax.op.bitwise_and(relax.op.astype(data, "int32"), scalar((1 << bits) - 1, "int32")))
    if not dtype.startswith("u"):
        sign = scalar(1 << (bits - 1), "int32")
        lower = node.emit(relax.op.subtract(relax.op.bitwise_xor(lower, sign), sign))
    return node.emit(relax.op.astype(lower, wide))


def _in_four_bits(node: Node, data: relax.Expr) -> relax.Expr:
    """The numbers of float4_e2m1fn next to others: 0 to 2 by halves, to 4 by ones, and 6; in float32 or float64."""
    op, emit, given = relax.op, node.emit, data.struct_info.dtype
    inner = given if given in EXACT else "float32"
    wide = emit(op.astype(data, inner)) if given != inner else data
    wide = emit(op.where(op.isnan(wide), scalar(-0.0, inner), op.clip(wide, -6.0, 6.0)))
    size = emit(op.abs(wide))
    coarse = op.where(op.less(size, scalar(4.0, inner)), scalar(1.0, inner), scalar(2.0, inner))
    step = emit(op.where(op.less(size, scalar(2.0, inner)), scalar(0.5, inner), coarse))
    return emit(op.multiply(emit(op.round(op.divide(wide, step))), step))


def saturated(node: Node, data: relax.Expr, dtype: str) -> relax.Expr:
    """The numbers brought into the range of an 8-bit float, as float32; NaN stays."""
    limit = float(ml_dtypes.finfo(dtype).max)
    wide = node.emit(relax.op.astype(data, "float32"))
    return node.emit(relax.op.where(relax.op.isnan(wide), wide, relax.op.clip(wide, -limit, limit)))


def as_float8(node: Node, data: relax.Expr, dtype: str) -> relax.Expr:
    """The numbers as an 8-bit float. By the node's ``saturate`` large ones become the largest one, or else infinity, or
    NaN where the format has none: casts themselves do with them what the installed PyTorch does."""
    layout, limits = FORMATS[dtype], ml_dtypes.finfo(dtype)
    if node.attribute("saturate", 1):
        data = saturated(node, data, dtype)
    elif layout.infinity is None:
        wide = node.emit(relax.op.astype(data, "float32"))
        tie = float(limits.max) + 2.0 ** (limits.maxexp - limits.nmant - 2)  # it goes to the even one of two codes
        is_large = (relax.op.greater_equal if layout.largest & 1 else relax.op.greater)(
            relax.op.abs(wide), scalar(tie, "float32")
        )
        data = node.emit(relax.op.where(is_large, scalar(float("nan"), "float32"), wide))
    return relax.op.astype(data, dtype)
