"""Incomplete gamma functions and Hurwitz's zeta function, as PyTorch has them: by the Cephes library and SciPy."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
from tvm import tirx

from tkc.frontend.loops import Cell, Loops, Number, Program
from tkc.frontend.torch.special.arithmetic import (
    EPSILON,
    absolute,
    both,
    either,
    erfc,
    exp,
    expm1,
    infinity,
    is_whole,
    lgamma,
    log,
    log1p,
    nan,
    number,
    power,
    quotient,
    rational,
    sqrt,
)

_ZETA = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1892437580.3183792,
    74724249600.0,
    -2950130727918.164,
    116467828143500.67,
    -4597978722407473.0,
    1.8152105401943546e17,
    -7.166165256175667e18,
)

_LANCZOS_NUMERATOR = (
    0.006061842346248907,
    0.5098416655656676,
    19.519927882476175,
    449.9445569063168,
    6955.999602515376,
    75999.29304014542,
    601859.6171681099,
    3481712.154980646,
    14605578.087685067,
    43338889.32467614,
    86363131.2881386,
    103794043.11634454,
    56906521.913471565,
)

_LANCZOS_DENOMINATOR = (
    1.0,
    66.0,
    1925.0,
    32670.0,
    357423.0,
    2637558.0,
    13339535.0,
    45995730.0,
    105258076.0,
    150917976.0,
    120543840.0,
    39916800.0,
    0.0,
)


def zeta(loops: Loops, x: Number, q: Number) -> Number:
    """The sum of ``1 / (q + k)**x`` over ``k >= 0``, by Euler and Maclaurin's formula; of an ``x`` below 1 NaN."""
    result = loops.cell("result", nan())
    with loops.when(tirx.EQ(x, number(1))):
        loops.set(result, infinity())
    with loops.when(either(x > number(1), tirx.isnan(x))):
        is_pole = both(q <= number(0), is_whole(q))
        with loops.when(is_pole):
            loops.set(result, infinity())
        with loops.when(either(q > number(0), both(q <= number(0), tirx.Not(is_pole), is_whole(x)))):
            loops.set(result, _zeta_series(loops, x, q))
    return result.value


def _zeta_series(loops: Loops, x: Number, q: Number) -> Number:
    total = loops.cell("total", power(q, -x))
    a, term = loops.cell("a", q), loops.cell("term", number(0))
    step, is_open = loops.cell("step", number(0)), loops.cell("is_open", number(1))

    def stop_if_small(part: Number) -> None:
        with loops.when(part < number(EPSILON) * absolute(total.value)):
            loops.set(is_open, number(0))

    with loops.loop(both(either(step.value < number(9), a.value <= number(9)), is_open.value > number(0))):
        loops.set(step, step.value + number(1))
        loops.set(a, a.value + number(1))
        loops.set(term, power(a.value, -x))
        loops.set(total, total.value + term.value)
        stop_if_small(absolute(term.value))
    with loops.when(is_open.value > number(0)):
        w = loops.cell("w", a.value).value
        loops.set(total, total.value + quotient(term.value * w, x - number(1)) - number(0.5) * term.value)
        factor, k = loops.cell("factor", number(1)), loops.cell("k", number(0))
        for divisor in _ZETA:
            with loops.when(is_open.value > number(0)):
                loops.set(factor, factor.value * (x + k.value))
                loops.set(term, quotient(term.value, w))
                part = loops.cell("part", quotient(factor.value * term.value, number(divisor))).value
                loops.set(total, total.value + part)
                stop_if_small(absolute(part))
                loops.set(factor, factor.value * (x + k.value + number(1)))
                loops.set(term, quotient(term.value, w))
                loops.set(k, k.value + number(2))
    return total.value


_MOST_TERMS = 2000
_LANCZOS_G = 6.024680040776729583740234375
_MOST_LOG = math.log(np.finfo("float64").max)


def incomplete_gamma(*, upper: bool) -> Program:
    """The regularized lower or ``upper`` incomplete gamma function of ``a`` and ``x``, and a table.

    The table is :func:`uniform_coefficients`. NaN of negative numbers, and of two zeros or two infinities.
    """

    def program(loops: Loops, a: Number, x: Number, table: tirx.Buffer) -> Number:
        zero, one = (number(0), number(1)) if upper else (number(1), number(0))
        # Where all, or nothing, of the integral is above x.
        result = loops.cell("result", nan())
        is_defined = tirx.Not(either(a < number(0), x < number(0)))  # also of NaN, as PyTorch has it
        is_at_zero = tirx.EQ(a, number(0))
        is_undefined = either(both(is_at_zero, tirx.Not(x > number(0))), both(tirx.isinf(a), tirx.isinf(x)))
        nothing_above = either(is_at_zero, tirx.isinf(x))
        all_above = either(tirx.EQ(x, number(0)), tirx.isinf(a))
        with loops.when(both(is_defined, tirx.Not(is_undefined))):
            with loops.when(nothing_above):
                loops.set(result, zero)
            with loops.otherwise():
                with loops.when(all_above):
                    loops.set(result, one)
                with loops.otherwise():
                    _incomplete_gamma(loops, a, x, table, result, upper=upper)
        return result.value

    return program


def _incomplete_gamma(loops: Loops, a: Number, x: Number, table: tirx.Buffer, result: Cell, *, upper: bool) -> None:
    """Sets ``result``, of positive numbers: by that series which converges there (DLMF 8.7, 8.9, 8.12)."""
    away = loops.cell("away", quotient(absolute(x - a), a)).value
    is_close = either(
        both(a > number(20), a < number(200), away < number(0.3)),
        both(a > number(200), away < quotient(number(4.5), sqrt(a))),
    )
    with loops.when(is_close):
        loops.set(result, _uniform(loops, a, x, table, upper=upper))
    with loops.otherwise():
        of_lower = loops.cell("of_lower", tirx.Select(x < a, number(1), number(0)))
        of_fraction = x > number(1.1)
        with loops.when(x <= number(1.1)):
            bound = tirx.Select(x <= number(0.5), quotient(number(-0.4), log(x)), x * number(1.1))
            loops.set(of_lower, tirx.Select(bound < a, number(1), number(0)))
        if not upper:
            with loops.when(either(x <= number(1), x <= a)):
                loops.set(of_lower, number(1))
        with loops.when(of_lower.value > number(0)):
            lower = _lower_series(loops, a, x)
            loops.set(result, number(1) - lower if upper else lower)
        with loops.otherwise():
            with loops.when(of_fraction):
                _upper_fraction(loops, a, x, result)
            with loops.otherwise():
                loops.set(result, _upper_series(loops, a, x))
            if not upper:
                loops.set(result, number(1) - result.value)


def _prefactor(loops: Loops, a: Number, x: Number) -> Number:
    """``x**a * exp(-x) / gamma(a)``, near ``a`` by Lanczos' approximation, in which what is large cancels."""
    result = loops.cell("prefactor", number(0))
    with loops.when(absolute(a - x) > number(0.4) * absolute(a)):
        exponent = loops.cell("exponent", a * log(x) - x - lgamma(a)).value
        loops.set(result, tirx.Select(exponent < number(-_MOST_LOG), number(0), exp(exponent)))
    with loops.otherwise():
        shifted = loops.cell("shifted", a + number(_LANCZOS_G - 0.5)).value
        inverse = loops.cell("inverse", quotient(number(1), a)).value
        # By 1 / a, so that no power overflows: the degrees of both polynomials are the same.
        direct = rational(a, _LANCZOS_NUMERATOR, _LANCZOS_DENOMINATOR)
        turned = rational(inverse, _LANCZOS_NUMERATOR[::-1], _LANCZOS_DENOMINATOR[::-1])
        sum_ = tirx.if_then_else(a > number(1), turned, direct)
        loops.set(result, quotient(sqrt(shifted * number(math.exp(-1))), sum_))
        with loops.when(both(a < number(200), x < number(200))):
            loops.set(result, result.value * exp(a - x) * power(quotient(x, shifted), a))
        with loops.otherwise():
            part = loops.cell("part", quotient(x - a - number(_LANCZOS_G - 0.5), shifted)).value
            exponent = a * (log1p(part) - part) + quotient(x * number(0.5 - _LANCZOS_G), shifted)
            loops.set(result, result.value * exp(exponent))
    return result.value


def _lower_series(loops: Loops, a: Number, x: Number) -> Number:
    """DLMF 8.11.4."""
    factor = loops.cell("factor", _prefactor(loops, a, x)).value
    divisor, term, total = loops.cell("divisor", a), loops.cell("term", number(1)), loops.cell("total", number(1))
    step = loops.cell("step", number(0))
    is_open = both(step.value < number(_MOST_TERMS), term.value > number(EPSILON) * total.value)
    with loops.loop(is_open):
        loops.set(divisor, divisor.value + number(1))
        loops.set(term, term.value * quotient(x, divisor.value))
        loops.set(total, total.value + term.value)
        loops.set(step, step.value + number(1))
    return tirx.Select(tirx.EQ(factor, number(0)), number(0), quotient(total.value * factor, a))


def _upper_series(loops: Loops, a: Number, x: Number) -> Number:
    """DLMF 8.7.3, without cancellation."""
    factor, total = loops.cell("factor", number(1)), loops.cell("total", number(0))
    term, n = loops.cell("term", number(1)), loops.cell("n", number(1))
    is_open = both(n.value < number(_MOST_TERMS), absolute(term.value) > number(EPSILON) * absolute(total.value))
    with loops.loop(is_open):
        loops.set(factor, factor.value * quotient(-x, n.value))
        loops.set(term, quotient(factor.value, a + n.value))
        loops.set(total, total.value + term.value)
        loops.set(n, n.value + number(1))
    logarithm = loops.cell("logarithm", a * log(x)).value
    return -expm1(logarithm - lgamma(number(1) + a)) - exp(logarithm - lgamma(a)) * total.value


def _upper_fraction(loops: Loops, a: Number, x: Number, result: Cell) -> None:
    """DLMF 8.9.2, a continued fraction."""
    factor = loops.cell("factor", _prefactor(loops, a, x)).value
    loops.set(result, number(0))
    with loops.when(tirx.NE(factor, number(0))):
        c, y = loops.cell("c", number(0)), loops.cell("y", number(1) - a)
        z = loops.cell("z", x + number(2) - a)
        p, p_before = loops.cell("p", x + number(1)), loops.cell("p_before", number(1))
        q, q_before = loops.cell("q", z.value * x), loops.cell("q_before", x)
        found = loops.cell("found", quotient(p.value, q.value))
        change = loops.cell("change", number(1))
        with loops.loop(both(c.value < number(_MOST_TERMS), change.value > number(EPSILON))):
            loops.set(c, c.value + number(1))
            loops.set(y, y.value + number(1))
            loops.set(z, z.value + number(2))
            weight = loops.cell("weight", y.value * c.value).value
            next_p = loops.cell("next_p", p.value * z.value - p_before.value * weight).value
            next_q = loops.cell("next_q", q.value * z.value - q_before.value * weight).value
            loops.set(change, number(1))
            with loops.when(tirx.NE(next_q, number(0))):
                ratio = loops.cell("ratio", quotient(next_p, next_q)).value
                loops.set(change, absolute(quotient(found.value - ratio, ratio)))
                loops.set(found, ratio)
            loops.set(p_before, p.value)
            loops.set(q_before, q.value)
            loops.set(p, next_p)
            loops.set(q, next_q)
            with loops.when(absolute(next_p) > number(2.0**52)):
                for held in (p, p_before, q, q_before):
                    loops.set(held, held.value * number(2.0**-52))
        loops.set(result, found.value * factor)


def _uniform(loops: Loops, a: Number, x: Number, table: tirx.Buffer, *, upper: bool) -> Number:
    """DLMF 8.12.3 and 8.12.4, for ``a`` that is large and near ``x``."""
    sign = 1.0 if upper else -1.0
    sigma = loops.cell("sigma", quotient(x - a, a)).value
    size = loops.cell("size", sqrt(number(-2) * (log1p(sigma) - sigma))).value
    eta = loops.cell("eta", tirx.Select(x > a, size, -size)).value
    total, scale = loops.cell("total", number(0)), loops.cell("scale", number(1))
    before, k = loops.cell("before", infinity()), loops.cell("k", tirx.const(0, "int32"))
    count = tirx.const(_TERMS, "int32")
    with loops.loop(k.value < count):
        n, held = loops.cell("n", count - tirx.const(1, "int32")), loops.cell("held", number(0))
        with loops.loop(n.value >= tirx.const(0, "int32")):
            loops.set(held, held.value * eta + tirx.BufferLoad(table, [k.value * count + n.value]))
            loops.set(n, n.value - tirx.const(1, "int32"))
        term = loops.cell("term", held.value * scale.value).value
        loops.set(k, k.value + tirx.const(1, "int32"))
        with loops.when(absolute(term) > before.value):
            loops.set(k, count)
        with loops.otherwise():
            loops.set(total, total.value + term)
            loops.set(before, absolute(term))
            loops.set(scale, quotient(scale.value, a))
            with loops.when(absolute(term) < number(EPSILON) * absolute(total.value)):
                loops.set(k, count)
    normal = number(0.5) * erfc(number(sign) * eta * sqrt(a * number(0.5)))
    rest = quotient(exp(number(-0.5) * a * eta * eta) * total.value, sqrt(number(2 * math.pi) * a))
    return normal + number(sign) * rest


_TERMS = 25


@cache
def uniform_coefficients() -> np.ndarray:
    """``d[k, n]`` of the uniform expansion in one row, ``[25 * 25]`` float64: DLMF 8.12.9 to 8.12.13, exactly, rounded.

    With ``alpha`` the series of the argument's quotient in ``eta``, and ``g`` Stirling's coefficients.
    """
    reach = 3 * _TERMS + 2
    # eta**2 / 2 = mu - log(1 + mu) gives mu * mu' = eta * (1 + mu), and so each coefficient of mu.
    alpha = [Fraction(0), Fraction(1)]
    for n in range(2, reach + 1):
        known = sum((i * alpha[i] * alpha[n + 1 - i] for i in range(2, n)), Fraction(0))
        alpha.append((alpha[n - 1] - known) / (n + 1))
    # Stirling's: gamma(a) = sqrt(2 * pi / a) * (a / e)**a * sum of g[k] / a**k, by the odd powers of the same series.
    g = [
        math.prod((Fraction(2 * i + 1) for i in range(1, k + 1)), start=Fraction(1)) * alpha[2 * k + 1]
        for k in range(_TERMS)
    ]
    rows = [[Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, reach - 2))]]
    for k in range(1, _TERMS):
        before = rows[-1]
        rows.append([(-1) ** k * g[k] * rows[0][n] + (n + 2) * before[n + 2] for n in range(len(before) - 2)])
    return np.array([[float(value) for value in row[:_TERMS]] for row in rows]).reshape(-1)
