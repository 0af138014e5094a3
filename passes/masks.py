"""Says what an attention mask lets a query see, where that follows from positions alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tvm import tirx

from tkc.passes.index_expressions import Choice, Element
from tkc.passes.views import IndexSpace

Visibility = Literal["everything", "top_left", "bottom_right"]

LARGEST_FILL = -1e4
"""The largest number that models fill hidden scores with; after softmax it is as good as minus infinity."""


@dataclass(frozen=True)
class ScorePositions:
    """The query and key that a score belongs to, as index variables of ``space``, and how many there are of each."""

    space: IndexSpace
    query: tirx.PrimExpr
    key: tirx.PrimExpr
    queries: tirx.PrimExpr
    keys: tirx.PrimExpr


def visibility(element: Element | None, positions: ScorePositions) -> Visibility | None:
    """What a mask with ``element`` at the positions shows: every key, those up to the query, or ``None`` for neither.

    The element is true where the key is seen, or a number added to the score: zero where the key is seen, else at most
    :data:`LARGEST_FILL`. With a finite fill, a query that sees nothing at all would still average over the keys, so
    there must provably be none.
    """
    condition = seen(element)
    if condition is None:
        return None
    p = positions
    if p.space.analyzer.can_prove(condition):
        return "everything"
    if _is_causal(condition, p, tirx.IntImm("int64", 0)):
        return "top_left"
    leaves_none_out = p.space.analyzer.can_prove(p.queries <= p.keys)
    if _is_causal(condition, p, p.keys - p.queries) and (leaves_none_out or _fills_with_infinity(element)):
        return "bottom_right"
    return None


def seen(element: Element | None) -> tirx.PrimExpr | None:
    """When a key is seen under a mask with this element (see :func:`visibility`); ``None`` where it is no such mask."""
    if isinstance(element, Choice):
        chosen, otherwise = seen(element.chosen), seen(element.otherwise)
        if chosen is None or otherwise is None:
            return None
        return tirx.Or(tirx.And(element.condition, chosen), tirx.And(tirx.Not(element.condition), otherwise))
    if isinstance(element, float):
        return tirx.const(element == 0, "bool") if element == 0 or element <= LARGEST_FILL else None
    return element if element is not None and element.dtype == "bool" else None


def scaled(element: Element | None, factor: float) -> Element | None:
    """The element of a mask of numbers after multiplication by ``factor``."""
    if isinstance(element, Choice):
        chosen, otherwise = scaled(element.chosen, factor), scaled(element.otherwise, factor)
        return None if chosen is None or otherwise is None else Choice(element.condition, chosen, otherwise)
    return element * factor if isinstance(element, float) else None


def _fills_with_infinity(element: Element | None) -> bool:
    return all(number in (0.0, float("-inf")) for number in _numbers(element))


def _numbers(element: Element | None) -> Iterator[float]:
    if isinstance(element, Choice):
        yield from _numbers(element.chosen)
        yield from _numbers(element.otherwise)
    elif isinstance(element, float):
        yield element


def _is_causal(condition: tirx.PrimExpr, positions: ScorePositions, offset: tirx.PrimExpr) -> bool:
    """Whether ``condition`` is ``key <= query + offset``.

    Both ways with ``key`` written as its distance from the boundary, which turns the claim into one about the sign
    of a variable.
    """
    p = positions
    if not isinstance(p.key, tirx.Var):
        return False
    analyzer = p.space.analyzer
    condition = analyzer.simplify(condition)
    distance = tirx.Var("distance", "int64")
    p.space.assume_natural(distance)
    boundary = p.query + offset
    inside = tirx.stmt_functor.substitute(condition, {p.key: boundary - distance})
    outside = tirx.stmt_functor.substitute(condition, {p.key: boundary + 1 + distance})
    return analyzer.can_prove(inside) and analyzer.can_prove(tirx.Not(outside))
