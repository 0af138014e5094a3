"""Functions of numbers as PyTorch and ONNX define them, where TVM's own err, lose NaN, or end the process.

Each takes and returns TensorIR expressions; floats of 16 bits are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tvm import DataType, tirx

from tkc.kernels.pure_functions import SUBTRACT, register_pure

Number: TypeAlias = tirx.PrimExpr
Function: TypeAlias = Callable[..., Number]

_NARROW = ("float16", "bfloat16")


def difference(x: Number, y: Number) -> Number:
    """``x - y`` of unsigned numbers, which wraps around. TVM ends the process where it finds ``0 - 1`` of them."""
    return tirx.call_intrin(x.dtype, register_pure(SUBTRACT), x, y)


def from_library(name: str) -> Function:
    """The C library's function ``name`` of floats, which CUDA has by the same name."""

    def call(*args: Number) -> Number:
        dtype = args[0].dtype
        return tirx.call_pure_extern(dtype, name if dtype == "float64" else f"{name}f", *args)

    return call


def in_float32(function: Function) -> Function:
    """``function``, in float32 of what is narrower; its result in the operands' dtype, unless it is no such float."""

    def call(*args: Number) -> Number:
        dtype = args[0].dtype
        if dtype not in _NARROW:
            return function(*args)
        result = function(*(arg.astype("float32") for arg in args))
        return result.astype(dtype) if result.dtype == "float32" else result

    return call


expm1 = from_library("expm1")
log1p = from_library("log1p")


def rounded_to_bfloat16(x: Number) -> Number:
    """``x``, float32, as the nearest bfloat16 has it, in float32: where a cast would be left out of generated code."""
    bits = tirx.reinterpret("uint32", x)
    odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
    nearest = (bits + tirx.const(0x7FFF, "uint32") + odd) & tirx.const(0xFFFF0000, "uint32")
    return tirx.Select(tirx.isnan(x), x, tirx.reinterpret("float32", nearest))


def softplus(x: Number, beta: float, threshold: float) -> Number:
    """``log(1 + exp(beta * x)) / beta``, and ``x`` where ``beta * x`` is beyond the threshold."""
    scaled = x * _like(beta, x)
    return tirx.Select(scaled > _like(threshold, x), x, tirx.Div(log1p(tirx.exp(scaled)), _like(beta, x)))


def silu(x: Number) -> Number:
    """``x`` times its sigmoid."""
    return tirx.Div(x, _like(1, x) + tirx.exp(-x))


def rsqrt(x: Number) -> Number:
    """One over the square root."""
    return tirx.Div(_like(1, x), tirx.sqrt(x))


def gelu(x: Number) -> Number:
    """``x`` times the normal distribution's probability of less."""
    return _like(0.5, x) * x * (_like(1, x) + tirx.erf(x * _like(math.sqrt(0.5), x)))


def gelu_tanh(x: Number) -> Number:
    """:func:`gelu` by a hyperbolic tangent."""
    inner = _like(math.sqrt(2 / math.pi), x) * (x + _like(0.044715, x) * x * x * x)
    return _like(0.5, x) * x * (_like(1, x) + tirx.tanh(inner))


def is_integer(number: Number) -> bool:
    """Whether ``number`` is a whole one: truth values are not."""
    return "int" in number.dtype


def floor_divide(x: Number, y: Number) -> Number:
    """``x / y`` rounded down. Of integers, division by zero gives 0, and the lowest one by -1 is itself."""
    if is_integer(x):
        return _divided(tirx.floordiv, x, y)
    # The quotient may round up to a whole number: what the remainder leaves is divided, as Python does.
    rest = _fmod(x, y)
    exact = tirx.Div(x - rest, y)
    down = tirx.Select(_turns(rest, y), exact - _like(1, x), exact)
    whole = tirx.floor(down)
    whole = tirx.Select(down - whole > _like(0.5, x), whole + _like(1, x), whole)
    true = tirx.Div(x, y)
    quotient = tirx.Select(tirx.EQ(down, _like(0, x)), _copysign(_like(0, x), true), whole)
    return tirx.Select(tirx.EQ(y, _like(0, y)), true, quotient)


def trunc_divide(x: Number, y: Number) -> Number:
    """``x / y`` of integers rounded towards zero; see :func:`floor_divide` for what has no quotient."""
    return _divided(tirx.truncdiv, x, y)


def remainder(x: Number, y: Number) -> Number:
    """What :func:`floor_divide` leaves, with the sign of ``y``. Of integers, 0 where ``y`` is zero."""
    if is_integer(x):
        return _divided(tirx.floormod, x, y, is_remainder=True)
    rest = _fmod(x, y)
    return tirx.Select(_turns(rest, y), rest + y, rest)


def fmod(x: Number, y: Number) -> Number:
    """What division rounded towards zero leaves, with the sign of ``x``. Of integers, 0 where ``y`` is zero."""
    if is_integer(x):
        return _divided(tirx.truncmod, x, y, is_remainder=True)
    return _fmod(x, y)


def shift_left(x: Number, count: Number) -> Number:
    """``x`` shifted by ``count`` bits: 0 where that is negative, or all of them."""
    return _shifted(tirx.shift_left, x, count, _like(0, x))


def shift_right(x: Number, count: Number) -> Number:
    """``x`` shifted by ``count`` bits, its sign kept: all bits of it where that is negative, or all of them."""
    if x.dtype.startswith("uint"):
        return _shifted(tirx.shift_right, x, count, _like(0, x))
    return _shifted(tirx.shift_right, x, count, tirx.shift_right(x, _like(DataType(x.dtype).bits - 1, x)))


def cast(x: Number, dtype: str) -> Number:
    """``x`` in ``dtype``; a float beyond a narrow or unsigned integer wraps around, as PyTorch has it."""
    if "float" in x.dtype and "int" in dtype and (dtype.startswith("uint") or DataType(dtype).bits < 32):
        wide = "int64" if dtype.startswith("uint") else "int32"
        return x.astype(wide).astype(dtype)
    return x.astype(dtype)


def _like(value: float, number: Number) -> Number:
    return tirx.const(value, number.dtype)


_fmod = from_library("fmod")
_copysign = from_library("copysign")


def _turns(rest: Number, y: Number) -> Number:
    """Whether a remainder, which is not zero then, has another sign than the divisor."""
    return tirx.And(tirx.Not(tirx.EQ(rest, _like(0, rest))), _differ_in_sign(rest, y))


def _differ_in_sign(x: Number, y: Number) -> Number:
    """Whether one of two numbers other than zero is below zero."""
    zero = _like(0, x)  # truth values are not compared: LLVM has no such comparison of TVM's
    below, beyond = tirx.LT(x, zero), tirx.LT(zero, x)
    return tirx.Or(tirx.And(below, tirx.LT(zero, y)), tirx.And(beyond, tirx.LT(y, zero)))


def _divided(operation: Function, x: Number, y: Number, *, is_remainder: bool = False) -> Number:
    """Processors interrupt a program that divides by zero, or whose quotient is no number of the type."""
    zero, one = _like(0, y), _like(1, y)
    if isinstance(y, tirx.IntImm) and y.value not in (0, -1):
        return operation(x, y)
    unsigned = y.dtype.startswith("uint")
    unsafe = tirx.EQ(y, zero) if unsigned else tirx.Or(tirx.EQ(y, zero), tirx.EQ(y, -one))
    safe = tirx.Select(unsafe, one, y)
    if is_remainder:  # by one: nothing remains, as by -1
        return operation(x, safe)
    undone = zero if unsigned else tirx.Select(tirx.EQ(y, zero), zero, zero - x)
    return tirx.Select(unsafe, undone, operation(x, safe))


def _shifted(operation: Function, x: Number, count: Number, beyond: Number) -> Number:
    bits = DataType(x.dtype).bits
    if isinstance(count, tirx.IntImm):
        return operation(x, count) if 0 <= count.value < bits else beyond
    inside = tirx.LT(count, _like(bits, count))
    if not count.dtype.startswith("uint"):
        inside = tirx.And(tirx.GE(count, _like(0, count)), inside)
    return tirx.Select(inside, operation(x, tirx.Select(inside, count, _like(0, count))), beyond)
