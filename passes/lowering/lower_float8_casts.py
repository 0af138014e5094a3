"""Spells out casts to and from 8-bit floats bit by bit, which TVM's code for the CPU gets wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import torch
import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

_FLOAT32_BIAS, _FLOAT32_MANTISSA = 127, 23


@dataclass(frozen=True)
class Float8:
    """The layout of a signed 8-bit float: sign, exponent, mantissa, from the most significant bit on.

    ``largest`` is the code of the largest number, ``nan`` that of NaN. Formats with ``infinity`` have a code for it, as
    NaN those that are larger. Formats with ``one_zero`` use the code of -0 for NaN.
    Source: OCP 8-bit Floating Point Specification 1.0, and arXiv:2206.02915 for the ``fnuz`` formats.
    """

    mantissa: int
    bias: int
    largest: int
    nan: int
    infinity: int | None = None
    one_zero: bool = False


FORMATS = {
    "float8_e4m3fn": Float8(mantissa=3, bias=7, largest=0x7E, nan=0x7F),
    "float8_e5m2": Float8(mantissa=2, bias=15, largest=0x7B, nan=0x7F, infinity=0x7C),
    "float8_e4m3fnuz": Float8(mantissa=3, bias=8, largest=0x7F, nan=0x80, one_zero=True),
    "float8_e5m2fnuz": Float8(mantissa=2, bias=16, largest=0x7F, nan=0x80, one_zero=True),
}
_SCALE = "float8_e8m0fnu"  # a power of two: an exponent and nothing else
_CALCULATIONS = frozenset(
    f"relax.{name}"
    for name in (
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "abs", "isnan", "isinf", "isfinite",
        "matmul",
    )
)  # fmt: skip


@cache
def overflow_codes(dtype: str) -> tuple[int, int]:
    """The codes that the installed PyTorch gives a number too large for a format of :data:`FORMATS`, and infinity.

    PyTorch 2.13 saturates where 2.11 made NaN: casts to ``float8_e4m3fn`` give the largest number, of infinity, too.
    """
    with torch.device("cpu"):
        numbers = torch.tensor([torch.finfo(torch.float32).max, torch.inf], dtype=torch.float32)
        finite, infinite = numbers.to(getattr(torch, dtype)).view(torch.uint8).tolist()
    return finite, infinite


@tvm.transform.module_pass(opt_level=0, name="LowerFloat8Casts")
class LowerFloat8Casts:
    """Replaces every ``astype`` from or to an 8-bit float, for a CPU, by a function that computes the bits.

    What multiplies or compares 8-bit floats, or asks what they are, does so in float32, on every device: TVM has no
    code for it.

    Numbers are rounded to the nearest, ties to even. What is too large becomes what PyTorch makes of it
    (:func:`overflow_codes`). Other devices convert in hardware.

    Powers of two, ``float8_e8m0fnu``, are rounded to the nearest, ties up, without their sign; what is above the
    largest is NaN. Source: ``c10/util/Float8_e8m0fnu.h`` of PyTorch 2.13.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the casts spelled out."""
        target = tvm.target.Target.current(allow_none=True)
        module = rewritten(module, _Widening)
        if target is not None and target.kind.name != "llvm":
            return module
        return rewritten(module, _Lowering)


@mutator
class _Widening(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name in _CALCULATIONS):
            return call
        if not any(_is_float8(arg) for arg in call.args):
            return call
        wide = [self.builder_.emit(relax.op.astype(arg, "float32")) if _is_float8(arg) else arg for arg in call.args]
        product = call.op.name == "relax.matmul"
        result = self.builder_.normalize(relax.op.matmul(*wide) if product else relax.Call(call.op, wide, call.attrs))
        dtype = call.struct_info.dtype
        return result if result.struct_info.dtype == dtype else relax.op.astype(self.builder_.emit(result), dtype)


def _is_float8(expr: relax.Expr) -> bool:
    sinfo = expr.struct_info
    return isinstance(sinfo, relax.TensorStructInfo) and sinfo.dtype.startswith("float8")


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.astype"):
            return call
        source, target = call.args[0].struct_info.dtype, call.struct_info.dtype
        result = call.args[0]
        if source == target:
            return result
        if source in FORMATS or source == _SCALE:
            hint = f"from_{source}"
            result = self.builder_.emit(self.builder_.call_te(_decoded, result, primfunc_name_hint=hint))
            source = "float32"
        if source == target:
            return result
        if target in FORMATS or target == _SCALE:
            wide = result if source == "float32" else self.builder_.emit(relax.op.astype(result, "float32"))
            return self.builder_.call_te(_encoded, wide, target, primfunc_name_hint=f"to_{target}")
        return relax.op.astype(result, target)


def _decoded(tensor: te.Tensor) -> te.Tensor:
    decode = _power_of_two_of_code if tensor.dtype == _SCALE else _number_of_code
    return te.compute(tensor.shape, lambda *index: decode(tensor(*index)), "decoded")


def _encoded(tensor: te.Tensor, dtype: str) -> te.Tensor:
    def encode(number: tirx.PrimExpr) -> tirx.PrimExpr:
        return code_of_power_of_two(number) if dtype == _SCALE else _code_of(number, dtype)

    return te.compute(tensor.shape, lambda *index: tirx.reinterpret(dtype, encode(tensor(*index))), "encoded")


def _int32(value: int) -> tirx.PrimExpr:
    return tirx.const(value, "int32")


def _power_of_two(exponent: tirx.PrimExpr) -> tirx.PrimExpr:
    """The float32 2^exponent, for the exponent of a normal number."""
    bits = (exponent + _FLOAT32_BIAS) << _FLOAT32_MANTISSA
    return tirx.reinterpret("float32", bits.astype("uint32"))  # as TVM may widen signed arithmetic to 64 bits


def _number_of_code(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """An 8-bit float as float32."""
    layout = FORMATS[number.dtype]
    code = tirx.reinterpret("uint8", number).astype("int32")
    magnitude = code & _int32(0x7F)
    exponent = magnitude >> layout.mantissa
    fraction = (magnitude & _int32((1 << layout.mantissa) - 1)).astype("float32")
    unit = _power_of_two(tirx.max(exponent, _int32(1)) - (layout.bias + layout.mantissa))
    implied = tirx.Select(exponent > 0, tirx.const(2.0**layout.mantissa, "float32"), tirx.const(0.0, "float32"))
    value = (implied + fraction) * unit
    if layout.infinity is not None:
        value = tirx.Select(magnitude == layout.infinity, tirx.const(np.inf, "float32"), value)
        missing = magnitude > layout.infinity
    else:
        missing = (code if layout.one_zero else magnitude) == layout.nan
    value = tirx.Select(missing, tirx.const(np.nan, "float32"), value)
    return tirx.Select(code > 0x7F, -value, value)


def _power_of_two_of_code(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """A scale, which is 2^(code - 127), or NaN, as float32."""
    code = tirx.reinterpret("uint8", number).astype("int32")
    smallest = tirx.const(2.0**-_FLOAT32_BIAS, "float32")  # below float32's normal numbers
    value = tirx.Select(code > 0, _power_of_two(code - _FLOAT32_BIAS), smallest)
    return tirx.Select(code == 0xFF, tirx.const(np.nan, "float32"), value)


def code_of_power_of_two(number: tirx.PrimExpr, mode: str = "nearest", *, saturates: bool = False) -> tirx.PrimExpr:
    """The uint8 that stands for the power of two next to a float32 number, "up", "down", or the "nearest" one.

    Of numbers above the largest power it is NaN's, or the largest one's if it ``saturates``.
    """
    bits = tirx.reinterpret("uint32", number)
    power = (bits >> tirx.const(_FLOAT32_MANTISSA, "uint32")) & tirx.const(0xFF, "uint32")
    fraction = bits & tirx.const(0x7FFFFF, "uint32")
    half = tirx.const(0x400000, "uint32")
    rises = {
        "up": fraction > tirx.const(0, "uint32"),
        "nearest": tirx.any(fraction > half, tirx.all(fraction == half, power > tirx.const(0, "uint32"))),
        "down": tirx.const(False, "bool"),
    }[mode]
    rises = tirx.all(rises, power < tirx.const(0xFE if saturates else 0xFF, "uint32"))
    return (power + tirx.Cast("uint32", rises)).astype("uint8")


def _code_of(number: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    """The uint8 that stands for a float32 number in an 8-bit format."""
    layout = FORMATS[dtype]
    bits = tirx.reinterpret("int32", number)
    largest = float(ml_dtypes.finfo(dtype).max)
    size = tirx.min(tirx.abs(number), tirx.const(2 * largest, "float32"))
    exponent = (tirx.reinterpret("int32", size) >> _FLOAT32_MANTISSA) - _FLOAT32_BIAS
    exponent = tirx.max(exponent, _int32(1 - layout.bias))
    # In units of the last place of the result, whose rounding may carry into the exponent.
    units = tirx.nearbyint(size * _power_of_two(layout.mantissa - exponent)).astype("int32")
    code = ((exponent + (layout.bias - 1)) << layout.mantissa) + units
    overflow, infinity = overflow_codes(dtype)
    code = tirx.Select(code > layout.largest, _int32(overflow), code)
    if infinity != overflow:
        code = tirx.Select(tirx.abs(number) == tirx.const(np.inf, "float32"), _int32(infinity), code)
    code = tirx.Select(tirx.isnan(number), _int32(layout.nan), code)
    negative = bits < 0
    if layout.one_zero:
        negative = tirx.And(negative, tirx.And(code > 0, code < 0x80))
    return tirx.Select(negative, code | _int32(0x80), code).astype("uint8")
