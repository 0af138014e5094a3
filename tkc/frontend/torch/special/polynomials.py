"""Orthogonal polynomials of a degree that each element has for itself, by their recurrences.

A degree is rounded towards zero. One below 0 gives 0, and so does one that is no number of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tkc.frontend.loops import Cell, Loops, Number, Program
from tkc.frontend.torch.special.arithmetic import absolute, acos, both, cos, floor, nan, number, quotient, sin

_OfDegree = Callable[[Number], Number]
_Step = Callable[[Number, Number, Number], Number]
"""From ``k``, the polynomial of that degree and the one of the degree below to that of degree ``k + 1``."""


def _one(_: Number) -> Number:
    return number(1)


def _next(n: Number) -> Number:
    return n + number(1)


def _odd(n: Number) -> Number:
    return n + n + number(1)


def _half(x: Number) -> Number:
    return x * number(0.5)


@dataclass(frozen=True)
class _Chebyshev:
    """Of one kind: degree 1 is ``slope * x + constant``; the values at 1, and at -1, where those of odd degrees are
    negative; and the form in the degree and the angle, the arc cosine of the argument.

    Between -1 and 1 PyTorch has that of degrees above ``most`` (of ``2x - 1``, above ``most_shifted``).
    """

    slope: int
    constant: int
    at_one: _OfDegree
    at_minus_one: _OfDegree
    of_angle: Callable[[Number, Number], Number]
    most: int
    most_shifted: int


_KINDS = {
    "t": _Chebyshev(1, 0, _one, _one, lambda n, angle: cos(n * angle), 6, 6),
    "u": _Chebyshev(2, 0, _next, _next, lambda n, angle: quotient(sin(_next(n) * angle), sin(angle)), 8, 6),
    "v": _Chebyshev(2, -1, _one, _odd, lambda n, angle: quotient(cos(_half(_odd(n)) * angle), cos(_half(angle))), 8, 6),
    "w": _Chebyshev(2, 1, _odd, _one, lambda n, angle: quotient(sin(_half(_odd(n)) * angle), sin(_half(angle))), 8, 4),
}
"""By the names of PyTorch's operators (DLMF 18.5)."""


def chebyshev(kind: str, *, shifted: bool = False) -> Program:
    """Chebyshev's polynomial of the first to fourth kind, ``t`` to ``w``; ``shifted``, of ``2x - 1``."""
    form = _KINDS[kind]
    most = form.most_shifted if shifted else form.most

    def program(loops: Loops, x: Number, n: Number) -> Number:
        result, degree = _begun(loops, n)
        x = loops.cell("argument", x + x - number(1) if shifted else x).value
        with loops.when(degree >= number(0)):
            with loops.when(tirx.EQ(absolute(x), number(1))):
                is_even = tirx.EQ(degree, floor(_half(degree)) * number(2))
                below = form.at_minus_one(degree)
                loops.set(result, tirx.Select(x > number(0), form.at_one(degree), tirx.Select(is_even, below, -below)))
            with loops.otherwise():
                with loops.when(both(degree > number(most), absolute(x) < number(1))):
                    angle = loops.cell("angle", acos(x)).value
                    loops.set(result, form.of_angle(degree, angle))
                with loops.otherwise():
                    first = number(form.slope) * x + number(form.constant)
                    loops.set(result, _recurrence(loops, degree, first, lambda k, q, p: (x + x) * q - p))
        return result.value

    return program


def hermite(*, of_probability: bool = False, most: int) -> Program:
    """Hermite's polynomial of physics, or that of probability; NaN of degrees beyond ``most``."""

    def program(loops: Loops, x: Number, n: Number) -> Number:
        result, degree = _begun(loops, n)
        with loops.when(degree > number(most)):
            loops.set(result, nan())
        with loops.when(both(degree >= number(0), degree <= number(most))):
            twice = number(1) if of_probability else number(2)
            loops.set(result, _recurrence(loops, degree, twice * x, lambda k, q, p: twice * x * q - twice * k * p))
        return result.value

    return program


def laguerre(loops: Loops, x: Number, n: Number) -> Number:
    """Laguerre's polynomial."""
    result, degree = _begun(loops, n)
    with loops.when(degree >= number(0)):
        loops.set(result, number(1))
        with loops.when(tirx.NE(x, number(0))):
            first = number(1) - x
            loops.set(
                result,
                _recurrence(loops, degree, first, lambda k, q, p: quotient((k + k + first) * q - k * p, _next(k))),
            )
    return result.value


def legendre(loops: Loops, x: Number, n: Number) -> Number:
    """Legendre's polynomial, of the first kind."""
    result, degree = _begun(loops, n)
    with loops.when(degree >= number(0)):
        with loops.when(tirx.EQ(absolute(x), number(1))):
            is_even = tirx.EQ(degree, floor(_half(degree)) * number(2))
            loops.set(result, tirx.Select(is_even, number(1), x))
        with loops.otherwise():
            step: _Step = lambda k, q, p: quotient(_odd(k) * x * q - k * p, _next(k))  # noqa: E731
            loops.set(result, _recurrence(loops, degree, x, step))
    return result.value


def _begun(loops: Loops, n: Number) -> tuple[Cell, Number]:
    """A cell for the result, 0, and the degree; -1 where there is none."""
    result = loops.cell("result", number(0))
    whole = tirx.Select(n < number(0), number(0), floor(n))
    is_degree = both(n > number(-1), n < number(2.0**63))
    return result, loops.cell("degree", tirx.Select(is_degree, whole, number(-1))).value


def _recurrence(loops: Loops, degree: Number, first: Number, step: _Step) -> Number:
    """The polynomial of ``degree``, of which 0 is 1 and 1 is ``first``; no further once it is NaN."""
    p, q, k = loops.cell("p", number(1)), loops.cell("q", first), loops.cell("k", number(1))
    with loops.loop(both(k.value < degree, tirx.Not(tirx.isnan(q.value)))):
        following = loops.cell("following", step(k.value, q.value, p.value)).value
        loops.set(p, q.value)
        loops.set(q, following)
        loops.set(k, _next(k.value))
    return tirx.Select(tirx.EQ(degree, number(0)), number(1), q.value)
