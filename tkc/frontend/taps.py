"""The elements that an interpolated one is made of, and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm import tirx

Tap = tuple[tirx.PrimExpr, tirx.PrimExpr]
"""A position along an axis, and its weight."""

_SHARPNESS = -0.75


def cubic_weights(fraction: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    """The weights of the two elements before a point and the two behind it (R. Keys, Cubic convolution interpolation
    for digital image processing, 1981)."""
    one, a = tirx.const(1, fraction.dtype), _SHARPNESS

    def near(x: tirx.PrimExpr) -> tirx.PrimExpr:
        return ((a + 2) * x - (a + 3)) * x * x + one

    def far(x: tirx.PrimExpr) -> tirx.PrimExpr:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(fraction + one), near(fraction), near(one - fraction), far(one - fraction + one)]


def weighted(value: tirx.PrimExpr, weights: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """``value`` times the product of its weights along the axes."""
    weight = weights[0]
    for other in weights[1:]:
        weight = weight * other
    return value * weight


def total(terms: Iterable[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The sum of at least one term, from the first on."""
    first, *rest = terms
    for term in rest:
        first = first + term
    return first
