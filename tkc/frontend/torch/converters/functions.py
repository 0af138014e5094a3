"""Functions of one number or two: roots, exponentials, trigonometry, and those of the C library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tvm import relax, te
from tvm.relax import op

from tkc.contracts import LOG2_OPERATOR, OPERATOR
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.tables import Unary, overloads
from tkc.passes.lowering import number_functions


def elementwise(
    b: Emitter,
    name: str,
    function: number_functions.Function,
    *operands: relax.Expr,
    in_float32: bool = True,
    attrs: Mapping[str, Any] = MappingProxyType({}),
) -> relax.Expr:
    """``function`` of each element of tensors of one shape; ``in_float32`` of narrower ones, or of what they are.

    ``attrs`` become the PrimFunc's attributes.

    The result is not called ``name`` alone: in CUDA code it would hide the library's function of that name.
    """
    compute = number_functions.in_float32(function) if in_float32 else function

    def loops(*tensors: te.Tensor) -> te.Tensor:
        return te.compute(tensors[0].shape, lambda *i: compute(*(tensor(*i) for tensor in tensors)), name=f"T_{name}")

    return b.emit_te(name, loops, *operands, **attrs)


def unary(function: Unary) -> Converter:
    """In the dtype of the result, to which PyTorch brings integers before functions like ``sin``."""
    return lambda b, x, *_: function(b.tensor(x, b.dtype))


def absolute(x: relax.Expr) -> relax.Expr:
    """``|x|``; truth values are themselves."""
    return x if x.struct_info.dtype == "bool" else op.abs(x)


def reciprocal(x: relax.Expr) -> relax.Expr:
    """``1 / x``."""
    return op.divide(relax.const(1, x.struct_info.dtype), x)


def expm1(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``exp(x) - 1``, which keeps the digits of a small ``x``."""
    return elementwise(b, "expm1", number_functions.expm1, b.tensor(x, b.dtype))


def log1p(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``log(1 + x)``, which keeps the digits of a small ``x``."""
    return elementwise(b, "log1p", number_functions.log1p, b.tensor(x, b.dtype))


def log2(b: Emitter, x: relax.Expr) -> relax.Expr:
    """The logarithm to base 2; a product with ``1 / log(2)`` would make 2.9999998 of 8, which a floor brings out."""
    function = number_functions.from_library("log2")
    return elementwise(b, "log2", function, b.tensor(x, b.dtype), attrs={OPERATOR: LOG2_OPERATOR})


def of_two_from_library(name: str) -> Converter:
    """The C library's function of two floats, in the dtype of the result."""
    function = number_functions.from_library(name)

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        operands = (op.broadcast_to(b.tensor(value, b.dtype), b.shape) for value in (x, y))
        return elementwise(b, name, function, *map(b.emit, operands))

    return convert


def _unary_from_library(name: str) -> Converter:
    """The C library's function of one float, in the dtype of the result."""
    function = number_functions.from_library(name)
    return lambda b, x: elementwise(b, name, function, b.tensor(x, b.dtype))


def _bessel(name: str) -> Converter:
    """The C library's, and NaN of infinity, as PyTorch has it.

    In float64, those of PyTorch err by 1e-7, so that they are refused.
    """
    convert = _unary_from_library(name)

    def in_float32(b: Emitter, x: relax.Expr) -> relax.Expr:
        if b.dtype == "float64":
            raise b.unsupported("Bessel functions of float64 are not supported. Use float32.")
        infinite = b.emit(op.isinf(b.wide(b.tensor(x, b.dtype))))
        return op.where(infinite, b.tensor(math.nan, b.dtype), b.emit(convert(b, x)))

    return in_float32


_UNARY: dict[str, Unary] = {
    "abs": absolute,
    "acos": op.acos,
    "acosh": op.acosh,
    "asin": op.asin,
    "asinh": op.asinh,
    "atan": op.atan,
    "atanh": op.atanh,
    "ceil": op.ceil,
    "cos": op.cos,
    "cosh": op.cosh,
    "erf": op.erf,
    "exp": op.exp,
    "floor": op.floor,
    "log": op.log,
    "reciprocal": reciprocal,
    "round": op.round,
    "rsqrt": op.rsqrt,
    "sin": op.sin,
    "sinh": op.sinh,
    "sqrt": op.sqrt,
    "tan": op.tan,
    "tanh": op.tanh,
    "trunc": op.trunc,
}

CONVERTERS: dict[str, Converter] = {
    **overloads(
        {
            **{name: unary(function) for name, function in _UNARY.items()},
            **{name: _unary_from_library(name) for name in ("lgamma", "erfc", "exp2", "log10")},
            **{f"special_bessel_{name}": _bessel(name) for name in ("j0", "j1", "y0", "y1")},
            "expm1": expm1,
            "log1p": log1p,
            "log2": log2,
            "hypot": of_two_from_library("hypot"),
        },
        "default",
    ),
    **overloads({"copysign": of_two_from_library("copysign")}, "Tensor", "Scalar"),
}
