"""One element of a tensor as an expression in its index, and arithmetic with such elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tvm import tirx

from tkc.passes.graph.bindings import static
from tkc.passes.graph.views import int64


@dataclass(frozen=True)
class Choice:
    """``chosen`` where ``condition`` holds, else ``otherwise``: how floating-point numbers depend on the index."""

    condition: tirx.PrimExpr
    chosen: Element
    otherwise: Element


Element: TypeAlias = tirx.PrimExpr | float | Choice
"""One element: a truth value or a whole number (int64) as an expression, or a floating-point number."""


class DataDependent(Exception):
    """The element depends on what a tensor holds, or on an operator that is not read here."""


def literal(value: tirx.PrimExpr | float | int | bool) -> Element:
    """A literal as an element."""
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, bool | int):
        return tirx.const(value, "bool" if isinstance(value, bool) else "int64")
    return value if isinstance(value, float) or value.dtype == "bool" else tirx.Cast("int64", value)


def converted(element: Element, dtype: str) -> Element:
    """``element`` in another dtype, whose own precision does not matter for the numbers that masks are made of."""
    if isinstance(element, Choice):
        chosen, otherwise = converted(element.chosen, dtype), converted(element.otherwise, dtype)
        if isinstance(chosen, float) or isinstance(otherwise, float):
            return Choice(element.condition, chosen, otherwise)
        return tirx.Select(element.condition, chosen, otherwise)
    if dtype.startswith(("float", "bfloat")):
        return to_float(element)
    if isinstance(element, float):
        if not element.is_integer() and dtype != "bool":
            raise DataDependent
        return tirx.const(bool(element), "bool") if dtype == "bool" else tirx.const(int(element), "int64")
    if dtype == "bool":
        return element if element.dtype == "bool" else element != 0
    if element.dtype == "bool":
        return tirx.Select(element, int64(1), int64(0))
    if dtype in ("int32", "int64"):
        return element
    raise DataDependent


def to_float(element: Element) -> Element:
    """``element`` as a floating-point number, if a choice among literals."""
    if isinstance(element, float | Choice):
        return element
    if isinstance(element, tirx.Select):
        return Choice(element.condition, to_float(element.true_value), to_float(element.false_value))
    if (number := static(element)) is not None:
        return float(number)
    if element.dtype == "bool":
        return Choice(element, 1.0, 0.0)
    raise DataDependent


def distributed(function: Callable[..., Element], left: Element, right: Element) -> Element:
    """``function`` of two elements, applied to whatever each of them may choose."""
    if isinstance(left, Choice):
        chosen, otherwise = (distributed(function, x, right) for x in (left.chosen, left.otherwise))
        return _joined(left.condition, chosen, otherwise)
    if isinstance(right, Choice):
        chosen, otherwise = (distributed(function, left, x) for x in (right.chosen, right.otherwise))
        return _joined(right.condition, chosen, otherwise)
    if isinstance(left, float) != isinstance(right, float):
        left, right = to_float(left), to_float(right)
        return distributed(function, left, right)
    return function(left, right)


def _joined(condition: tirx.PrimExpr, chosen: Element, otherwise: Element) -> Element:
    if isinstance(chosen, tirx.PrimExpr) and isinstance(otherwise, tirx.PrimExpr) and chosen.dtype == "bool":
        return tirx.Or(tirx.And(condition, chosen), tirx.And(tirx.Not(condition), otherwise))
    return Choice(condition, chosen, otherwise)


def quotient(left: object, right: object) -> Element:
    """The quotient of two floating-point numbers, the second not zero."""
    if not (isinstance(left, float) and isinstance(right, float) and right):
        raise DataDependent
    return left / right


def whole_quotient(left: object, right: object) -> Element:
    """The quotient of two whole numbers, rounded down; the second is known and not zero."""
    if isinstance(left, float) or isinstance(right, float) or not static(right):
        raise DataDependent
    return tirx.floordiv(left, right)


def unequal(left: tirx.PrimExpr, right: tirx.PrimExpr) -> tirx.PrimExpr:
    """Whether two truth values differ."""
    return tirx.Or(tirx.And(left, tirx.Not(right)), tirx.And(tirx.Not(left), right))


def has_floats(element: Element) -> bool:
    """Whether ``element`` is a floating-point number, or a choice of some."""
    return isinstance(element, float) or (isinstance(element, Choice) and has_floats(element.chosen))
