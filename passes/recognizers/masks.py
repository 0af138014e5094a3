"""Says what an attention mask lets a query see, where that follows from positions alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from tvm import tirx
from tvm.ir import Range

from tkc.passes.graph.elements import Choice, Element
from tkc.passes.graph.views import IndexSpace

Causal = Literal["top_left", "bottom_right"]


@dataclass(frozen=True)
class Visibility:
    """What a query sees: keys up to its own position, and at most ``window`` positions away; else every key.

    Positions are counted from the first query and key, or, ``bottom_right``, from the last.
    """

    causal: Causal | None = None
    window: int | None = None

    def joined(self, other: Visibility) -> Visibility | None:
        """What both show; ``None`` where they count positions differently."""
        if Visibility() in (self, other):
            return other if self == Visibility() else self
        if (self.causal == "bottom_right") != (other.causal == "bottom_right"):
            return None
        windows = [window for window in (self.window, other.window) if window is not None]
        return Visibility(self.causal or other.causal, min(windows, default=None))


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
    """What a mask with ``element`` at the positions shows; ``None`` where it is no such mask.

    The element is true where the key is seen, or a number added to the score: zero where the key is seen, else at most
    :data:`LARGEST_FILL`. With a finite fill, a query that sees nothing at all would still average over the keys, so
    there must provably be none.
    """
    condition = seen(element)
    if condition is None:
        return None
    p = positions
    if p.space.analyzer.can_prove(condition):
        return Visibility()
    condition = p.space.analyzer.simplify(condition)
    leaves_none_out = _fills_with_infinity(element) or p.space.analyzer.can_prove(p.queries <= p.keys)
    forms: tuple[Causal | None, ...] = ("top_left", "bottom_right", None)
    for causal, window in product(forms, (None, *_possible_windows(condition))):
        found = Visibility(causal, window)
        # The first key is seen by all under a causal mask that is aligned there, and under no other.
        if found not in (Visibility(), Visibility("top_left")) and not leaves_none_out:
            continue
        if found != Visibility() and _shows(condition, p, found):
            return found
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


def _possible_windows(condition: tirx.PrimExpr) -> list[int]:
    """Windows that comparisons with the numbers in ``condition`` may mean."""
    numbers: set[int] = set()

    def visit(node: object) -> None:
        if isinstance(node, tirx.IntImm) and node.dtype != "bool":
            numbers.add(abs(int(node.value)))

    tirx.stmt_functor.post_order_visit(condition, visit)
    return sorted({number + change for number in numbers for change in (-1, 0, 1) if number + change >= 0})


def _shows(condition: tirx.PrimExpr, positions: ScorePositions, claim: Visibility) -> bool:
    """Whether ``condition`` holds for the keys that ``claim`` shows, and for no other.

    With ``key`` written as its distance from the boundaries, which turns the claims into ones about the sign of a
    variable.
    """
    p = positions
    if not isinstance(p.key, tirx.Var):
        return False
    analyzer = p.space.analyzer
    own = p.query + p.keys - p.queries if claim.causal == "bottom_right" else p.query
    distance = tirx.Var("distance", "int64")
    p.space.assume_natural(distance)
    inside = distance
    if claim.window is not None:
        inside = tirx.Var("inside", "int64")
        analyzer.bind(inside, Range(0, tirx.IntImm("int64", claim.window + 1)))
    seen_keys, hidden_keys = [own - inside], []
    if claim.window is not None:
        hidden_keys.append(own - (claim.window + 1) - distance)
    if claim.causal is not None:
        hidden_keys.append(own + 1 + distance)
    elif claim.window is not None:
        seen_keys.append(own + inside)
        hidden_keys.append(own + (claim.window + 1) + distance)

    def at(key: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.stmt_functor.substitute(condition, {p.key: key})

    return all(analyzer.can_prove(at(key)) for key in seen_keys) and all(
        analyzer.can_prove(tirx.Not(at(key))) for key in hidden_keys
    )
