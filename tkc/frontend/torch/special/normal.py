"""Functions of the normal distribution: its quantiles, and the logarithm of its distribution function."""

from __future__ import annotations

import math

from tvm import tirx

from tkc.frontend.loops import Loops, Number
from tkc.frontend.torch.special.arithmetic import (
    both,
    erfc,
    exp,
    fma,
    infinity,
    log,
    log1p,
    nan,
    number,
    polynomial,
    quotient,
    rational,
    sqrt,
)

_P0 = (
    -59.96335010141079,
    98.00107541859997,
    -56.67628574690703,
    13.931260938727968,
    -1.2391658386738125,
)

_Q0 = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)

_P1 = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)

_Q1 = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)

_P2 = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)

_Q2 = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)


_NEAR_TAIL = math.exp(-2)


def quantile(loops: Loops, y: Number) -> Number:
    """Below which a part ``y`` of the distribution is (``ndtri`` of the Cephes library); NaN outside of 0 to 1."""
    result = loops.cell("result", nan())
    with loops.when(tirx.EQ(y, number(0))):
        loops.set(result, -infinity())
    with loops.when(tirx.EQ(y, number(1))):
        loops.set(result, infinity())
    with loops.when(both(y > number(0), y < number(1))):
        is_upper = y > number(1 - _NEAR_TAIL)
        tail = loops.cell("tail", tirx.Select(is_upper, number(1) - y, y)).value
        with loops.when(tail > number(_NEAR_TAIL)):
            middle = loops.cell("middle", tail - number(0.5)).value
            square = loops.cell("square", middle * middle).value
            x = middle + middle * (square * rational(square, _P0, _Q0))
            loops.set(result, x * number(math.sqrt(2 * math.pi)))
        with loops.otherwise():
            root = loops.cell("root", sqrt(number(-2) * log(tail))).value
            z = loops.cell("z", quotient(number(1), root)).value
            correction = loops.cell("correction", number(0))
            with loops.when(root < number(8)):
                loops.set(correction, z * rational(z, _P1, _Q1))
            with loops.otherwise():
                loops.set(correction, z * rational(z, _P2, _Q2))
            x = loops.cell("x", root - quotient(log(root), root) - correction.value).value
            loops.set(result, tirx.Select(is_upper, x, -x))
    return result.value


_ASYMPTOTIC = [(-1) ** k * math.prod(range(1, 2 * k, 2)) / 2**k for k in range(9)]
"""Of ``sqrt(pi) * x * erfcx(x)``, in ``1 / x**2``, by rising powers (DLMF 7.12.1)."""


def scaled_complement(loops: Loops, x: Number) -> Number:
    """``exp(x**2) * erfc(x)``.

    The square is the sum of two numbers, of which the exponential is a product: its error would be ``x**2`` times as
    large. Beyond 20 the asymptotic series has all digits.
    """
    result = loops.cell("result", nan())
    with loops.when(x > number(20)):
        inverse = loops.cell("inverse", quotient(number(1), x)).value
        square = loops.cell("square", inverse * inverse).value
        loops.set(result, number(1 / math.sqrt(math.pi)) * inverse * polynomial(square, _ASYMPTOTIC[::-1]))
    with loops.when(x <= number(20)):
        loops.set(result, infinity())
        with loops.when(x >= number(-26.7)):
            high = loops.cell("high", x * x).value
            low = fma(x, x, -high)
            loops.set(result, exp(high) * (erfc(x) * (number(1) + low)))
    return result.value


def log_distribution(loops: Loops, x: Number) -> Number:
    """The logarithm of the part of the distribution below ``x``."""
    result = loops.cell("result", x)
    t = loops.cell("t", x * number(math.sqrt(0.5))).value
    with loops.when(x < number(-1)):
        loops.set(result, log(scaled_complement(loops, -t) * number(0.5)) - t * t)
    with loops.when(x >= number(-1)):
        loops.set(result, log1p(number(-0.5) * erfc(t)))
    return result.value
