"""Transcendental functions as arithmetic that vectorizes: LLVM would call the scalar C library once for every lane."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

_SINGLE_OR_LESS = ("float32", "float16")


def vectorize_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with ``exp``, ``erf``, ``tanh`` and ``sigmoid`` of float32 and float16 as polynomials.

    The error is at most 6e-7 of the exact value for each of them, in float32, where that is a normal number.
    Infinities and NaNs give what the C library gives.
    """
    expansions = {Op.get(f"tirx.{name}"): expand for name, expand in _EXPANSIONS.items()}

    def expand_call(call: tirx.Call) -> tirx.PrimExpr | None:
        expansion = expansions.get(call.op)
        if expansion is None or call.dtype not in _SINGLE_OR_LESS:
            return None
        return expansion(call.args[0].astype("float32")).astype(call.dtype)

    return func.with_body(ir_transform(func.body, None, expand_call, ["tirx.Call"]))


def compare_for_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with each test for NaN as a comparison with itself: TVM makes loops of other tests of vectors."""
    isnan = Op.get("tirx.isnan")

    def compared(call: tirx.Call) -> tirx.PrimExpr | None:
        if not call.op.same_as(isnan):
            return None
        (value,) = call.args
        inner = value.value if isinstance(value, tirx.Cast) else value
        if isinstance(inner, tirx.Var | tirx.BufferLoad):
            return tirx.Not(tirx.EQ(value, value))
        return _let(value, lambda value: tirx.Not(tirx.EQ(value, value)))

    return func.with_body(ir_transform(func.body, None, compared, ["tirx.Call"]))


def _let(value: tirx.PrimExpr, body: Callable[[tirx.Var], tirx.PrimExpr]) -> tirx.PrimExpr:
    """``body`` of a variable that holds ``value``, so that it is computed once."""
    variable = tirx.Var("x", value.dtype)
    return tirx.Let(variable, value, body(variable))


def _polynomial(x: tirx.PrimExpr, coefficients: tuple[float, ...]) -> tirx.PrimExpr:
    """Horner's rule; the highest power's coefficient first."""
    result: tirx.PrimExpr = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f32(coefficient)
    return result


def _exp(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``2**n * exp(r)`` with ``r = x - n ln 2`` in ±ln(2)/2, where seven powers of the Taylor series are exact enough.

    ``ln 2`` is subtracted in two parts (Cody and Waite, 1980), and ``2**n`` multiplied in two, so that results that are
    denormal or just below the largest float come out.
    """
    high, low = 0.693359375, math.log(2.0) - 0.693359375

    def scaled(clamped: tirx.Var) -> tirx.PrimExpr:
        return _let(tirx.floor(clamped * _f32(1 / math.log(2.0)) + _f32(0.5)), lambda n: powered(clamped, n))

    def powered(clamped: tirx.Var, n: tirx.Var) -> tirx.PrimExpr:
        return _let(clamped - n * _f32(high) - n * _f32(low), lambda r: _let(n.astype("int32"), lambda i: joined(r, i)))

    def joined(r: tirx.Var, n: tirx.Var) -> tirx.PrimExpr:
        series = _polynomial(r, tuple(1 / math.factorial(power) for power in range(7, -1, -1)))
        half = tirx.shift_right(n, tirx.const(1, "int32"))
        return series * _power_of_two(half) * _power_of_two(n - half)

    def guarded(x: tirx.Var) -> tirx.PrimExpr:
        # Beyond these bounds the result is infinite or zero; a NaN passes neither comparison and meets the clamp last.
        clamped = tirx.max(tirx.min(x, _f32(89.0)), _f32(-104.0))
        return tirx.Select(tirx.NE(x, x), x, _let(clamped, scaled))

    return _let(x, guarded)


def _power_of_two(n: tirx.PrimExpr) -> tirx.PrimExpr:
    """``2.0 ** n`` for integers from -126 to 127, from the bits of a float's exponent."""
    return tirx.reinterpret("float32", tirx.shift_left(n + tirx.const(127, "int32"), tirx.const(23, "int32")))


def _erf(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``1 - exp(-x²) p(t)`` with ``t = 1 / (1 + |x| / 2)``; near zero, where that cancels, the Taylor series.

    The form is that of Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, whose coefficients err by
    1.5e-7, which shows where GELU adds one. These are a minimax fit from 1/2 on that errs by 8e-9, less than a float.
    """
    coefficients = (-0.20910603, 0.56985784, 0.01745671, 0.34686195, 0.27483368, 0.0)

    def of_magnitude(x: tirx.Var, magnitude: tirx.Var) -> tirx.PrimExpr:
        t = _f32(1.0) / (magnitude * _f32(0.5) + _f32(1.0))
        tail = _let(t, lambda t: _polynomial(t, coefficients)) * _exp(-magnitude * magnitude)
        series = tuple(
            2 / math.sqrt(math.pi) * (-1) ** power / (math.factorial(power) * (2 * power + 1))
            for power in range(6, -1, -1)
        )
        near = x * _let(x * x, lambda square: _polynomial(square, series))
        return tirx.Select(magnitude < _f32(0.5), near, _with_sign_of(x, _f32(1.0) - tail))

    return _let(x, lambda x: _let(tirx.abs(x), lambda magnitude: of_magnitude(x, magnitude)))


def _tanh(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``1 - 2 / (exp(2|x|) + 1)`` with the sign of ``x``; near zero, where that cancels, the Taylor series."""

    def of_magnitude(x: tirx.Var, magnitude: tirx.Var) -> tirx.PrimExpr:
        away = _with_sign_of(x, _f32(1.0) - _f32(2.0) / (_exp(magnitude * _f32(2.0)) + _f32(1.0)))
        near = x * _let(x * x, lambda square: _polynomial(square, (62 / 2835, -17 / 315, 2 / 15, -1 / 3, 1.0)))
        return tirx.Select(magnitude < _f32(0.25), near, away)

    return _let(x, lambda x: _let(tirx.abs(x), lambda magnitude: of_magnitude(x, magnitude)))


def _sigmoid(x: tirx.PrimExpr) -> tirx.PrimExpr:
    return _f32(1.0) / (_f32(1.0) + _exp(-x))


def _with_sign_of(x: tirx.PrimExpr, magnitude: tirx.PrimExpr) -> tirx.PrimExpr:
    return _let(magnitude, lambda magnitude: tirx.Select(x < _f32(0.0), -magnitude, magnitude))


def _f32(value: float) -> tirx.PrimExpr:
    return tirx.const(value, "float32")


_EXPANSIONS: dict[str, Callable[[tirx.PrimExpr], tirx.PrimExpr]] = {
    "exp": _exp,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
}
