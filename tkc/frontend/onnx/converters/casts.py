"""Casts between all types of numbers."""

from __future__ import annotations

import onnx
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import EXACT, Converted, Converter, as_float8, narrowed, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Known
from tkc.frontend.onnx.values import ConversionError
from tkc.passes.lowering.lower_float8_casts import FORMATS, code_of_power_of_two


def _cast(node: Node) -> Converted:
    return cast_to(node, node.tensor(0), str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to"))))


def cast_to(node: Node, data: relax.Expr, target: str) -> relax.Expr:
    """Numbers as those of another type, by the attributes of a Cast."""
    if target in WIDENED:
        return narrowed(node, data, target)
    if target not in DTYPES:
        raise ConversionError(f"casts to {target}, which compiled models cannot hold; cast to a wider type")
    if target == "bool":
        return _truth(node, data)
    if target == "float8_e8m0fnu" and data.struct_info.dtype != target:
        return _power_of_two(node, data)
    if target in FORMATS:
        return as_float8(node, data, target)
    return relax.op.astype(data, target)


def _truth(node: Node, data: relax.Expr) -> relax.Expr:
    """Whether the numbers are not 0, which NaN is neither, though TVM's comparison has it otherwise."""
    if data.struct_info.dtype == "bool":
        return data
    if "float" not in data.struct_info.dtype:
        return relax.op.not_equal(data, scalar(0, data.struct_info.dtype))
    wide = node.emit(relax.op.astype(data, "float32")) if data.struct_info.dtype not in EXACT else data
    return relax.op.logical_or(relax.op.not_equal(wide, scalar(0, wide.struct_info.dtype)), relax.op.isnan(wide))


def _cast_like(node: Node) -> Converted:
    value, target = node.value(0), node.declared_dtype(1)
    known = None if value is None else value.known
    if known is not None and not known.symbolic and not target.startswith("float8"):
        return Known.constant(known.values.astype(target))
    return cast_to(node, node.tensor(0), target)


_ROUNDS = ("up", "down", "nearest")


def _power_of_two(node: Node, data: relax.Expr) -> relax.Expr:
    """The power of two of float8_e8m0fnu that ``round_mode`` says of a number, whose sign is lost.

    As ONNX's reference has it: in float32, of which it is the exponent; infinity is NaN, and what is above the largest
    is the largest if it saturates, else NaN.
    """
    mode, saturates = node.attribute("round_mode", "up"), bool(node.attribute("saturate", 1))
    if mode not in _ROUNDS:
        raise ConversionError(f"has round_mode {mode!r}; expected one of {', '.join(_ROUNDS)}: correct the model")
    wide = data if data.struct_info.dtype == "float32" else node.emit(relax.op.astype(data, "float32"))

    def compute(numbers: te.Tensor) -> te.Tensor:
        def power(*index: tirx.Var) -> tirx.PrimExpr:
            code = code_of_power_of_two(numbers(*index), mode, saturates=saturates)
            return tirx.reinterpret("float8_e8m0fnu", code)

        return te.compute(numbers.shape, power, name="power_of_two")

    return node.builder.emit_te(compute, wide, primfunc_name_hint="power_of_two")


CONVERTERS: dict[str, Converter] = {"Cast": _cast, "CastLike": _cast_like}
