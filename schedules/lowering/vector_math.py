"""Transcendental functions as arithmetic that vectorizes: LLVM would call the scalar C library once for every lane."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

_OfParts = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]
"""What is made of the exponent of a number, and of the logarithm of what is left of it."""

_SINGLE_OR_LESS = ("float32", "float16")
_EXTERN = Op.get("tirx.call_pure_extern")

# ln 2 in two parts, of which multiples of the first by integers of 10 bits are exact (Cody and Waite, 1980).
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2.0) - 0.693359375
_SQRT_HALF_BITS = 0x3F3504F3
_MANTISSA_BITS = 23
_SMALLEST_NORMAL = 2.0**-126


def vectorize_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with transcendental functions of float32 and float16 as polynomials: those of ``_EXPANSIONS``.

    The error is at most 6e-7 of the exact value for each of them, in float32, where that is a normal number.
    Infinities and NaNs give what the C library gives, and so does zero.
    """
    expansions = {Op.get(f"tirx.{name}"): expand for name, expand in _EXPANSIONS.items()}

    def expand_call(call: tirx.Call) -> tirx.PrimExpr | None:
        if call.op.same_as(_EXTERN):
            name, *args = call.args
            expansion = _OF_THE_C_LIBRARY.get(name.value)
        else:
            args, expansion = call.args, expansions.get(call.op)
        if expansion is None or call.dtype not in _SINGLE_OR_LESS:
            return None
        return expansion(args[0].astype("float32")).astype(call.dtype)

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

    ``2**n`` is multiplied in two parts, so that results that are denormal or just below the largest float come out.
    """

    def joined(r: tirx.Var, half: tirx.PrimExpr, rest: tirx.PrimExpr) -> tirx.PrimExpr:
        return _polynomial(r, tuple(1 / math.factorial(power) for power in range(7, -1, -1))) * half * rest

    # Beyond these bounds the result is infinite or zero.
    return _let(x, lambda x: tirx.Select(tirx.NE(x, x), x, _reduced(x, (-104.0, 89.0), joined)))


def _expm1(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``2**n * (exp(r) - 1) + (2**n - 1)``, which near zero, where ``n`` is 0, cancels nothing."""

    def joined(r: tirx.Var, half: tirx.PrimExpr, rest: tirx.PrimExpr) -> tirx.PrimExpr:
        series = r * _polynomial(r, tuple(1 / math.factorial(power) for power in range(7, 0, -1)))
        return _let(half, lambda half: _let(rest, lambda rest: (series * half + (half - _f32(1.0) / rest)) * rest))

    # Zeros keep their sign. Below the lower bound the result is -1.
    return _let(x, lambda x: tirx.Select(tirx.Or(x < _f32(0.0), _f32(0.0) < x), _reduced(x, (-20.0, 89.0), joined), x))


def _reduced(
    x: tirx.Var,
    bounds: tuple[float, float],
    joined: Callable[[tirx.Var, tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr],
) -> tirx.PrimExpr:
    """``joined(r, a, b)`` where ``x``, within ``bounds``, is ``r + n ln 2`` with ``r`` in ±ln(2)/2, and ``2**n`` ``a *
    b``."""

    def scaled(clamped: tirx.Var) -> tirx.PrimExpr:
        return _let(tirx.floor(clamped * _f32(1 / math.log(2.0)) + _f32(0.5)), lambda n: powered(clamped, n))

    def powered(clamped: tirx.Var, n: tirx.Var) -> tirx.PrimExpr:
        rest = clamped - n * _f32(_LN2_HIGH) - n * _f32(_LN2_LOW)
        return _let(rest, lambda r: _let(n.astype("int32"), lambda i: halved(r, i)))

    def halved(r: tirx.Var, n: tirx.Var) -> tirx.PrimExpr:
        half = tirx.shift_right(n, tirx.const(1, "int32"))
        return joined(r, _power_of_two(half), _power_of_two(n - half))

    lower, upper = bounds
    # A NaN passes neither comparison and meets the lower bound last.
    return _let(tirx.max(tirx.min(x, _f32(upper)), _f32(lower)), scaled)


def _log(x: tirx.PrimExpr) -> tirx.PrimExpr:
    def joined(k: tirx.PrimExpr, log_mantissa: tirx.PrimExpr) -> tirx.PrimExpr:
        return k * _f32(_LN2_HIGH) + (log_mantissa + k * _f32(_LN2_LOW))

    return _let(x, lambda x: _with_ends(x, _of_normal(x, joined)))


def _log2(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``k + log(m) / ln 2``, which is exact where ``m`` is 1."""
    return _let(x, lambda x: _with_ends(x, _of_normal(x, lambda k, log: k + log * _f32(1 / math.log(2.0)))))


def _of_normal(x: tirx.Var, joined: _OfParts) -> tirx.PrimExpr:
    """:func:`_logarithm`; of denormal numbers, whose exponent says nothing, that of a multiple."""
    is_small = x < _f32(_SMALLEST_NORMAL)
    scaled = tirx.Select(is_small, x * _f32(2.0**_MANTISSA_BITS), x)
    shift = tirx.Select(is_small, _f32(_MANTISSA_BITS), _f32(0.0))
    return _let(scaled, lambda scaled: _logarithm(scaled, lambda k, log: joined(k - shift, log)))


def _log1p(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``log(1 + x)``, to which the share of what the sum rounds off is added, as far as that changes the result."""

    def of_sum(x: tirx.Var, one_more: tirx.Var) -> tirx.PrimExpr:
        lost = (x - (one_more - _f32(1.0))) / one_more

        def joined(k: tirx.PrimExpr, log_mantissa: tirx.PrimExpr) -> tirx.PrimExpr:
            return k * _f32(_LN2_HIGH) + (log_mantissa + (lost + k * _f32(_LN2_LOW)))

        return _with_ends(one_more, _logarithm(one_more, joined))

    def of(x: tirx.Var) -> tirx.PrimExpr:
        away = _let(x + _f32(1.0), lambda one_more: of_sum(x, one_more))
        return tirx.Select(tirx.Or(x < _f32(0.0), _f32(0.0) < x), away, x)  # zeros keep their sign

    return _let(x, of)


def _logarithm(x: tirx.Var, joined: _OfParts) -> tirx.PrimExpr:
    """``joined(k, log(m))`` of a positive, normal number ``m 2**k`` with ``m`` between √½ and √2.

    ``log(m)`` is ``2 artanh(s)`` with ``s = (m - 1) / (m + 1)``, at most 0.172, of whose series five terms are exact
    enough.
    """

    def split(bits: tirx.Var) -> tirx.PrimExpr:
        above = bits - tirx.const(_SQRT_HALF_BITS, "int32")
        return _let(tirx.shift_right(above, tirx.const(_MANTISSA_BITS, "int32")), lambda k: of_parts(bits, k))

    def of_parts(bits: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        mantissa = tirx.reinterpret("float32", bits - tirx.shift_left(k, tirx.const(_MANTISSA_BITS, "int32")))
        quotient = _let(mantissa - _f32(1.0), lambda f: f / (f + _f32(2.0)))
        terms = tuple(2 / power for power in (9, 7, 5, 3, 1))
        log_mantissa = _let(quotient, lambda s: s * _let(s * s, lambda square: _polynomial(square, terms)))
        return _let(k.astype("float32"), lambda k: joined(k, log_mantissa))

    return _let(tirx.reinterpret("int32", x), split)


def _with_ends(x: tirx.Var, logarithm: tirx.PrimExpr) -> tirx.PrimExpr:
    """``logarithm`` of ``x``; minus infinity of zero, infinity of that, and NaN of what is below, or NaN itself."""
    infinity = tirx.const(math.inf, "float32")
    inside = tirx.And(_f32(0.0) < x, x < infinity)
    end = tirx.Select(tirx.EQ(x, _f32(0.0)), -infinity, tirx.Select(_f32(0.0) < x, x, _f32(math.nan)))
    return tirx.Select(inside, logarithm, end)


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
    "log": _log,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
}
_OF_THE_C_LIBRARY: dict[str, Callable[[tirx.PrimExpr], tirx.PrimExpr]] = {
    "expm1f": _expm1,
    "log1pf": _log1p,
    "log2f": _log2,
}
