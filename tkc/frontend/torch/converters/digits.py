"""Functions of how a number is represented: its sign, its exponent, the next number, its decimal digits."""

from __future__ import annotations

from typing import TypeAlias

from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.dtypes import rounded
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.functions import elementwise, of_two_from_library
from tkc.passes.lowering import number_functions

Number: TypeAlias = tirx.PrimExpr

_NARROW = ("float16", "bfloat16")


def nextafter(b: Emitter, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The next number of the dtype after ``x`` towards ``y``."""
    if b.dtype not in _NARROW:
        result: relax.Expr = of_two_from_library("nextafter")(b, x, y)
        return result
    operands = (b.emit(op.broadcast_to(b.tensor(value, b.dtype), b.shape)) for value in (x, y))
    return elementwise(b, "nextafter", _next_of_16_bits, *operands, in_float32=False)


def _next_of_16_bits(x: Number, y: Number) -> Number:
    """By the bits, which order the numbers of one sign."""
    dtype, bits = x.dtype, tirx.reinterpret("uint16", x)
    wide, towards = x.astype("float32"), y.astype("float32")
    zero, one = tirx.const(0, "float32"), tirx.const(1, "uint16")
    least = tirx.Select(towards < zero, tirx.const(0x8001, "uint16"), one)
    up, down = tirx.And(wide < towards, wide > zero), tirx.And(wide > towards, wide < zero)
    grows = tirx.Or(up, down)
    # Bits wrap around: -1 is added as the largest number is.
    moved = bits + tirx.Select(grows, one, tirx.const(0xFFFF, "uint16"))
    following = tirx.reinterpret(dtype, tirx.Select(tirx.EQ(wide, zero), least, moved))
    is_nan = tirx.Or(tirx.isnan(wide), tirx.isnan(towards))
    nan = tirx.reinterpret(dtype, tirx.const(0x7FC0 if dtype == "bfloat16" else 0x7E00, "uint16"))
    return tirx.Select(is_nan, nan, tirx.Select(tirx.EQ(wide, towards), y, following))


_LEAST_EXPONENT, _HIDDEN_BITS = 1022, 52
_SIGN_AND_FRACTION = -0x7FF0000000000001  # all bits but those of the exponent, as a number with a sign
_SUBNORMAL_SCALE = 54


def frexp(b: Emitter, x: relax.Expr) -> list[relax.Expr]:
    """The mantissa, from 0.5 up to 1, and the exponent, int32; 0 of zero, infinity and NaN, which are their mantissas.

    In float64, where no narrower number is subnormal.
    """
    wide = b.cast(x, "float64")
    mantissa = elementwise(b, "mantissa", _mantissa, wide)
    return [b.cast(mantissa, b.node.meta["val"][0].dtype), elementwise(b, "exponent", _exponent, wide)]


def _scaled(x: Number) -> tuple[Number, Number, Number]:
    """``x`` or, of a subnormal one, ``x * 2**54``; whether it is such; whether it has no exponent of its own."""
    size = tirx.Select(x < tirx.const(0, "float64"), -x, x)
    is_subnormal = size < tirx.const(2.0**-_LEAST_EXPONENT, "float64")
    scaled = tirx.Select(is_subnormal, x * tirx.const(2.0**_SUBNORMAL_SCALE, "float64"), x)
    is_special = tirx.Or(tirx.EQ(x, tirx.const(0, "float64")), tirx.Or(tirx.isinf(x), tirx.isnan(x)))
    return scaled, is_subnormal, is_special


def _mantissa(x: Number) -> Number:
    scaled, _, is_special = _scaled(x)
    kept = tirx.bitwise_and(tirx.reinterpret("int64", scaled), tirx.const(_SIGN_AND_FRACTION, "int64"))
    half = tirx.bitwise_or(kept, tirx.const(_LEAST_EXPONENT << _HIDDEN_BITS, "int64"))
    return tirx.Select(is_special, x, tirx.reinterpret("float64", half))


def _exponent(x: Number) -> Number:
    scaled, is_subnormal, is_special = _scaled(x)
    bits = tirx.shift_right(tirx.reinterpret("int64", scaled), tirx.const(_HIDDEN_BITS, "int64"))
    own = tirx.bitwise_and(bits, tirx.const(0x7FF, "int64")) - tirx.const(_LEAST_EXPONENT, "int64")
    shift = tirx.Select(is_subnormal, tirx.const(_SUBNORMAL_SCALE, "int64"), tirx.const(0, "int64"))
    return tirx.Select(is_special, tirx.const(0, "int64"), own - shift).astype("int32")


def round_decimals(b: Emitter, x: relax.Expr, decimals: int) -> relax.Expr:
    """``x`` rounded to so many decimal digits, or, if negative, to a power of ten; of halves to the even number."""
    if not decimals:
        return op.round(x)
    x = b.wide(x)
    power = b.tensor(rounded(10.0 ** abs(decimals), x.struct_info.dtype), x.struct_info.dtype)
    first, last = (op.multiply, op.divide) if decimals > 0 else (op.divide, op.multiply)
    return last(b.emit(op.round(b.emit(first(x, power)))), power)


def signbit(b: Emitter, x: relax.Expr) -> relax.Expr:
    """Whether an element is negative, as -0.0 is."""
    dtype = x.struct_info.dtype
    if dtype == "bool":
        return op.zeros_like(x)
    if "float" not in dtype:
        return op.less(x, relax.const(0, dtype))
    x = b.wide(x)
    one = b.emit(op.ones_like(x))
    signed = elementwise(b, "copysign", number_functions.from_library("copysign"), one, x)
    return op.less(signed, relax.const(0, x.struct_info.dtype))


def ldexp(b: Emitter, x: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """``x * 2 ** exponent``; PyTorch has the power of a whole number in float32."""
    dtype = exponent.struct_info.dtype
    power_dtype = dtype if "float" in dtype else "float32"
    two = b.tensor(2.0, "float32" if power_dtype in _NARROW else power_dtype)
    power_of_two = b.emit(op.power(two, b.wide(b.tensor(exponent, power_dtype))))
    x = b.wide(b.tensor(x, b.dtype))  # a power that is infinite in float16 may have a finite product
    return op.multiply(x, b.tensor(b.cast(power_of_two, power_dtype), x.struct_info.dtype))


CONVERTERS: dict[str, Converter] = {
    "aten.nextafter.default": nextafter,
    "aten.frexp.Tensor": frexp,
    "aten.round.decimals": round_decimals,
    "aten.signbit.default": signbit,
    "aten.ldexp.Tensor": ldexp,
}
