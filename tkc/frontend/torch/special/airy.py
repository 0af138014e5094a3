"""The Airy function Ai, by the approximations of the Cephes library, as PyTorch has it."""

from __future__ import annotations

import math

from tvm import tirx

from tkc.frontend.loops import Loops, Number
from tkc.frontend.torch.special.arithmetic import (
    absolute,
    cos,
    either,
    exp,
    nan,
    number,
    quotient,
    rational,
    sin,
    sqrt,
)

_AN = (
    0.346538101525629,
    12.007595273964581,
    76.27960536152345,
    168.08922493463058,
    159.75639135016442,
    70.53609068404442,
    14.026469116338967,
    1.0,
)

_AD = (
    0.5675945326387702,
    14.75625625848472,
    84.51389701414746,
    177.31808814540045,
    164.2346928715297,
    71.47784008255756,
    14.095913560783403,
    1.0,
)

_AFN = (
    -0.1316963234183318,
    -0.6264565444319123,
    -0.6931580360369335,
    -0.2797799815451191,
    -0.04919001326095003,
    -0.004062659235948854,
    -0.0001592764962392621,
    -2.776491081552329e-06,
    -1.6778769848911465e-08,
)

_AFD = (
    13.356042070655324,
    32.682503279522464,
    26.736704094149957,
    9.187074029072596,
    1.4752914677166642,
    0.11568717379518804,
    0.004402916416152112,
    7.547203482874142e-05,
    4.5185009297058035e-07,
)

_AGN = (
    0.01973399320916857,
    0.39110302961568827,
    1.0657989759959559,
    0.9391692298166502,
    0.35146565610554764,
    0.06338889196289255,
    0.005858041130483885,
    0.000282851600836737,
    6.98793669997261e-06,
    8.117892395543892e-08,
    3.415517847659236e-10,
)

_AGD = (
    9.30892908077442,
    19.835292871831214,
    15.564662893286462,
    5.476860694229755,
    0.9542936116189619,
    0.08645808263523921,
    0.004126565238242226,
    0.00010125908511650914,
    1.1716673321441352e-06,
    4.9183457006293e-09,
)


_INVERSE_ROOT_OF_PI = 1 / math.sqrt(math.pi)
_AT_ZERO, _SLOPE_AT_ZERO = 0.355028053887817239260, 0.258819403792806798405
_MOST = 103.892  # PyTorch has 0 beyond


def airy(loops: Loops, x: Number) -> Number:
    """``Ai(x)``; NaN of infinities, as PyTorch has it."""
    result = loops.cell("result", number(0))
    with loops.when(x < number(-2.09)):
        root = loops.cell("root", sqrt(-x)).value
        zeta = loops.cell("zeta", quotient(number(-2) * x * root, number(3))).value
        z = loops.cell("z", quotient(number(1), zeta)).value
        square = loops.cell("square", z * z).value
        angle = loops.cell("angle", zeta + number(math.pi / 4)).value
        waves = sin(angle) * (number(1) + square * rational(square, _AFN, _AFD))
        waves = waves - cos(angle) * (z * rational(square, _AGN, _AGD))
        loops.set(result, quotient(number(_INVERSE_ROOT_OF_PI), sqrt(root)) * waves)
    with loops.otherwise():
        with loops.when(x >= number(2.09)):
            zeta = loops.cell("zeta", quotient(number(2) * x * sqrt(x), number(3))).value
            series = number(_INVERSE_ROOT_OF_PI / 2) * rational(quotient(number(1), zeta), _AN, _AD)
            falling = quotient(series, sqrt(sqrt(x)) * exp(zeta))
            loops.set(result, tirx.Select(x > number(_MOST), number(0), falling))
        with loops.otherwise():
            loops.set(result, _power_series(loops, x))
    with loops.when(either(tirx.isinf(x), tirx.isnan(x))):
        loops.set(result, nan())
    return result.value


def _power_series(loops: Loops, x: Number) -> Number:
    """Near zero: of ``x**3``, for both of the equation's solutions."""
    cube = loops.cell("cube", x * x * x).value
    f, g = loops.cell("f", number(1)), loops.cell("g", x)
    m, n = loops.cell("m", number(1)), loops.cell("n", x)
    k, change = loops.cell("k", number(1)), loops.cell("change", number(1))
    with loops.loop(change.value > number(2.0**-52)):
        low = loops.cell("low", k.value + number(1)).value
        loops.set(m, quotient(quotient(m.value * cube, low), low + number(1)))
        loops.set(n, quotient(quotient(n.value * cube, low + number(1)), low + number(2)))
        loops.set(f, f.value + m.value)
        loops.set(g, g.value + n.value)
        loops.set(k, k.value + number(3))
        loops.set(change, absolute(quotient(m.value, f.value)))
    return number(_AT_ZERO) * f.value - number(_SLOPE_AT_ZERO) * g.value
