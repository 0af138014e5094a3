"""Reads factors that are the inverse root of a row's mean square, in the ways that models write it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isclose

from tvm import relax

from tkc.passes.graph.bindings import Graph, has_known_shape, shape, static

_ROUNDING = 1e-6  # of constants such as 1 / channels, relative


@dataclass(frozen=True)
class MeanSquare:
    """``scale * mean(rows ** 2) + epsilon`` over the last axis of ``rows``."""

    rows: relax.Expr
    scale: float
    epsilon: float = 0.0


@dataclass(frozen=True)
class _Root:
    """``factor`` times the square root of ``square``, or its inverse."""

    square: MeanSquare
    factor: float = 1.0
    inverse: bool = False


@dataclass(frozen=True)
class InverseRoot:
    """``factor / sqrt(square)``, one number for each of the rows."""

    square: MeanSquare
    factor: float

    def epsilon(self, factor: float) -> float | None:
        """What is added to the mean square under the root, if this times ``factor`` is that root's inverse alone."""
        scale = self.square.scale
        if not (0 < scale < inf and isclose(self.factor * factor, scale**0.5, rel_tol=_ROUNDING)):
            return None
        return self.square.epsilon / _rounded(scale)


def inverse_root(graph: Graph, expr: relax.Expr, divides: bool) -> InverseRoot | None:
    """The inverse root of a mean square that ``expr`` multiplies by, or (if it ``divides``) divides by.

    ``None`` where it is none, such as one with an addition outside of the root.
    """
    if not has_known_shape(expr) or [static(size) for size in shape(expr)[-1:]] != [1]:
        return None
    root = _root(graph, expr)
    if root is None or root.inverse == divides or not 0 < root.factor < inf:
        return None
    if not graph.same_shape(shape(expr), (*shape(root.square.rows)[:-1], 1)):
        return None
    return InverseRoot(root.square, 1 / root.factor if divides else root.factor)


def mean_of_last_axis(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the mean of over the last axis, which it keeps with the size 1."""
    found = _scaled_mean(graph, expr)
    if found is None or not has_known_shape(expr) or not isclose(found[1], 1, rel_tol=_ROUNDING):
        return None
    return found[0] if graph.same_shape(shape(expr), (*shape(found[0])[:-1], 1)) else None


def centered(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is with its mean over the last axis taken off, if it is that."""
    call = graph.call(graph.through_casts(expr), "relax.subtract")
    if call is None:
        return None
    source = mean_of_last_axis(graph, graph.through_casts(call.args[1]))
    return call.args[0] if source is not None and _same(graph, source, call.args[0]) else None


def same_rows(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    """Whether two expressions are one value but for casts, or such a value with its mean taken off."""
    if _same(graph, left, right):
        return True
    sources = centered(graph, left), centered(graph, right)
    return sources[0] is not None and sources[1] is not None and _same(graph, *sources)


def _same(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    return graph.same(graph.through_casts(left), graph.through_casts(right))


def _rounded(scale: float) -> float:
    return 1.0 if isclose(scale, 1, rel_tol=_ROUNDING) else scale


def _scaled_mean(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """What ``expr`` has the mean of over the last axis, which it may have lost, and the number that it is times."""
    expr = graph.through_views_and_casts(expr)
    if (scaled := times_constant(graph, expr)) is not None:
        found = _scaled_mean(graph, scaled[0])
        return None if found is None else (found[0], found[1] * scaled[1])
    call = graph.call(expr, "relax.mean", "relax.sum")
    if call is None or call.attrs.axis is None or not has_known_shape(call.args[0]):
        return None
    last = call.args[0].struct_info.ndim - 1
    if [int(axis) % (last + 1) for axis in call.attrs.axis] != [last]:
        return None
    if call.op.name == "relax.mean":
        return call.args[0], 1.0
    size = static(shape(call.args[0])[-1])
    return None if not size else (call.args[0], float(size))


def _mean_square(graph: Graph, expr: relax.Expr) -> MeanSquare | None:
    expr = graph.through_views_and_casts(expr)
    if (found := _scaled_mean(graph, expr)) is not None:
        rows = _squared(graph, found[0])
        return None if rows is None else MeanSquare(rows, found[1])
    if (scaled := times_constant(graph, expr)) is not None:
        inner = _mean_square(graph, scaled[0])
        return (
            None if inner is None else replace(inner, scale=inner.scale * scaled[1], epsilon=inner.epsilon * scaled[1])
        )
    if (call := graph.call(expr, "relax.add")) is not None:
        for term, number in (call.args, reversed(call.args)):
            constant = graph.constant(number)
            inner = None if constant is None else _mean_square(graph, term)
            if constant is not None and inner is not None:
                return replace(inner, epsilon=inner.epsilon + float(constant))
        return None
    root = None if (base := _squared(graph, expr)) is None else _root(graph, base)
    if root is None or root.inverse:
        return None
    return _times(root.square, root.factor * root.factor)


def _times(square: MeanSquare, factor: float) -> MeanSquare:
    return replace(square, scale=square.scale * factor, epsilon=square.epsilon * factor)


def _root(graph: Graph, expr: relax.Expr) -> _Root | None:
    expr = graph.through_views_and_casts(expr)
    if (call := graph.call(expr, "relax.sqrt", "relax.rsqrt")) is not None:
        square = _mean_square(graph, call.args[0])
        return None if square is None else _Root(square, inverse=call.op.name == "relax.rsqrt")
    if (call := graph.call(expr, "relax.power")) is not None:
        power = graph.constant(call.args[1])
        square = _mean_square(graph, call.args[0]) if power in (0.5, -0.5) else None
        return None if square is None else _Root(square, inverse=power == -0.5)
    if (scaled := times_constant(graph, expr)) is not None:
        root = _root(graph, scaled[0])
        return None if root is None else replace(root, factor=root.factor * scaled[1])
    call = graph.call(expr, "relax.divide")
    number = None if call is None else graph.constant(call.args[0])
    root = None if number is None or call is None else _root(graph, call.args[1])
    if number is None or root is None or root.factor == 0:
        return None
    return replace(root, factor=float(number) / root.factor, inverse=not root.inverse)


def times_constant(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """The tensor and the number other than zero that ``expr`` is the product of, or the quotient by."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    left, right = call.args
    divides = call.op.name == "relax.divide"
    if number := graph.constant(right):
        return left, 1 / number if divides else float(number)
    return (right, float(number)) if not divides and (number := graph.constant(left)) else None


def _squared(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the square of."""
    expr = graph.through_casts(expr)
    if (call := graph.call(expr, "relax.square")) is not None:
        return call.args[0]
    if (call := graph.call(expr, "relax.power")) is not None:
        return call.args[0] if graph.constant(call.args[1]) == 2 else None
    call = graph.call(expr, "relax.multiply")
    return call.args[0] if call is not None and same_rows(graph, *call.args) else None
