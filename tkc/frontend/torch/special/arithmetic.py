"""What the special functions are written with: numbers, functions and series of float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx

from tkc.frontend.loops import Loops, Number
from tkc.passes.lowering.number_functions import from_library

exp, log, sqrt = from_library("exp"), from_library("log"), from_library("sqrt")
expm1, log1p = from_library("expm1"), from_library("log1p")
sin, cos, acos = from_library("sin"), from_library("cos"), from_library("acos")
absolute, floor, power = from_library("fabs"), from_library("floor"), from_library("pow")
erfc, lgamma, fma = from_library("erfc"), from_library("lgamma"), from_library("fma")

EPSILON = 2.0**-53


def number(value: float) -> Number:
    """A constant."""
    return tirx.const(value, "float64")


def nan() -> Number:
    """No number."""
    return number(math.nan)


def infinity() -> Number:
    """The positive one."""
    return number(math.inf)


def either(*conditions: Number) -> Number:
    """Whether one of them holds."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = tirx.Or(result, condition)
    return result


def both(*conditions: Number) -> Number:
    """Whether all of them hold."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = tirx.And(result, condition)
    return result


def quotient(x: Number, y: Number) -> Number:
    """``x / y``."""
    return tirx.Div(x, y)


def is_whole(x: Number) -> Number:
    """Whether ``x`` has no fraction."""
    return tirx.EQ(x, floor(x))


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """By Horner's rule, the highest power first."""
    result = number(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + number(coefficient)
    return result


def rational(x: Number, above: Sequence[float], below: Sequence[float]) -> Number:
    """The quotient of two polynomials."""
    return quotient(polynomial(x, above), polynomial(x, below))


def chebyshev_series(loops: Loops, x: Number, coefficients: Sequence[float]) -> Number:
    """Of Chebyshev polynomials of ``x / 2``, the highest first; the last one counts half. By Clenshaw's rule."""
    x = loops.cell("argument", x).value
    first = loops.cell("first", number(coefficients[0]))
    second, third = loops.cell("second", number(0)), loops.cell("third", number(0))
    for coefficient in coefficients[1:]:
        loops.set(third, second.value)
        loops.set(second, first.value)
        loops.set(first, x * second.value - third.value + number(coefficient))
    return number(0.5) * (first.value - third.value)
