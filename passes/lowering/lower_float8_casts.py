"""Spells out casts to and from 8-bit floats bit by bit, which TVM's code for the CPU gets wrong."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
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

    ``largest`` is the code of the largest number, ``overflow`` that of what is larger (infinity where the format has
    it, else NaN), ``nan`` that of NaN. Formats with ``one_zero`` use the code of -0 for NaN.
    Source: OCP 8-bit Floating Point Specification 1.0, and arXiv:2206.02915 for the ``fnuz`` formats.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    one_zero: bool = False


FORMATS = {
    "float8_e4m3fn": Float8(mantissa=3, bias=7, largest=0x7E, overflow=0x7F, nan=0x7F),
    "float8_e5m2": Float8(mantissa=2, bias=15, largest=0x7B, overflow=0x7C, nan=0x7E),
    "float8_e4m3fnuz": Float8(mantissa=3, bias=8, largest=0x7F, overflow=0x80, nan=0x80, one_zero=True),
    "float8_e5m2fnuz": Float8(mantissa=2, bias=16, largest=0x7F, overflow=0x80, nan=0x80, one_zero=True),
}
_SCALE = "float8_e8m0fnu"  # a power of two: an exponent and nothing else


@tvm.transform.module_pass(opt_level=0, name="LowerFloat8Casts")
class LowerFloat8Casts:
    """Replaces every ``astype`` from or to an 8-bit float, for a CPU, by a function that computes the bits.

    Numbers are rounded to the nearest, ties to even. One too large becomes infinity, or NaN where the format has no
    infinity. Other devices convert in hardware.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the casts spelled out."""
        target = tvm.target.Target.current(allow_none=True)
        if target is not None and target.kind.name != "llvm":
            return module
        return rewritten(module, _Lowering)


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.astype"):
            return call
        source, target = call.args[0].struct_info.dtype, call.struct_info.dtype
        result = call.args[0]
        if source in FORMATS or source == _SCALE:
            hint = f"from_{source}"
            result = self.builder_.emit(self.builder_.call_te(_decoded, result, primfunc_name_hint=hint))
            source = "float32"
        if target in FORMATS:
            wide = result if source == "float32" else self.builder_.emit(relax.op.astype(result, "float32"))
            return self.builder_.call_te(_encoded, wide, target, primfunc_name_hint=f"to_{target}")
        return result if source == target else relax.op.astype(result, target)


def _decoded(tensor: te.Tensor) -> te.Tensor:
    decode = _power_of_two_of_code if tensor.dtype == _SCALE else _number_of_code
    return te.compute(tensor.shape, lambda *index: decode(tensor(*index)), "decoded")


def _encoded(tensor: te.Tensor, dtype: str) -> te.Tensor:
    return te.compute(tensor.shape, lambda *index: tirx.reinterpret(dtype, _code_of(tensor(*index), dtype)), "encoded")


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
    if layout.overflow < layout.nan:  # the codes above infinity's are NaNs
        value = tirx.Select(magnitude == layout.overflow, tirx.const(np.inf, "float32"), value)
        missing = magnitude > layout.overflow
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
    code = tirx.Select(code > layout.largest, _int32(layout.overflow), code)
    code = tirx.Select(tirx.isnan(number), _int32(layout.nan), code)
    negative = bits < 0
    if layout.one_zero:
        negative = tirx.And(negative, tirx.And(code > 0, code < 0x80))
    return tirx.Select(negative, code | _int32(0x80), code).astype("uint8")
