"""Quotients and remainders, of sizes and of positions, that TVM bounds wrongly.

TVM bounds ``a % c`` by what it knows of ``a``, which is ``k * i + r`` with some unknown ``i`` and ``0 <= r < k``
(``arith.Analyzer.modular_set``): for ``c`` with the common divisor ``g`` of ``k`` and ``c``, by the numbers from
``r % c`` on in steps of ``g``, which is right where ``r % c < g`` alone. It takes ``(4 * n + 2) % 6 // 3`` for 0, which
is 1 where ``n`` is 2. As it also writes ``a // b % c`` as ``a % (b * c) // b``, and ``(a + b) % b`` as ``a % b``,
neither another ``r`` nor a multiple of ``c`` may be wrong: ``r < g`` has to hold for every ``r`` below ``k`` and every
``g`` other than 1 that ``k`` has in common with a multiple of ``c``.
"""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

import sympy
from tvm import arith, tirx

Size: TypeAlias = int | tirx.PrimExpr


def reduced(dividend: Size, divisor: Size, analyzer: arith.Analyzer) -> tuple[Size, Size, int]:
    """``dividend`` and ``divisor`` without a factor of both, and that factor."""
    if not (isinstance(dividend, tirx.PrimExpr) and (known := _positive(divisor))):
        return dividend, divisor, 1
    known_of = analyzer.modular_set(dividend)
    factor = gcd(known_of.coeff, known_of.base, known)
    if factor == 1:
        return dividend, divisor, 1
    return analyzer.simplify(tirx.floordiv(dividend, factor)), known // factor, factor


def is_bounded(dividend: Size, divisor: Size, analyzer: arith.Analyzer) -> bool:
    """Whether TVM bounds the remainders of ``dividend`` by ``divisor`` and its multiples rightly, whatever is added."""
    known = _positive(divisor)
    if not isinstance(dividend, tirx.PrimExpr) or known == 0:
        return True
    step = analyzer.modular_set(dividend).coeff
    if step == 0 or step % known == 0:  # the remainder is a number, and the quotient has none
        return True
    return step == 1 or known % step == 0 or bool(sympy.isprime(step))


def are_bounded(size: tirx.PrimExpr, analyzer: arith.Analyzer) -> bool:
    """Whether no remainder in ``size``, or that TVM makes of quotients in it, is one that it bounds wrongly."""
    found: list[tirx.FloorDiv | tirx.FloorMod] = []

    def visit(term: object) -> None:
        if isinstance(term, tirx.FloorDiv | tirx.FloorMod):
            found.append(term)

    tirx.stmt_functor.post_order_visit(size, visit)
    if len(found) == 1 and isinstance(found[0], tirx.FloorDiv):
        return True  # no remainder, and nothing that one could be made of
    return all(is_bounded(each.a, each.b, analyzer) for each in found)


def _positive(divisor: Size) -> int:
    """``divisor``, if it is a positive number, or 0."""
    return max(int(divisor), 0) if isinstance(divisor, int | tirx.IntImm) else 0
