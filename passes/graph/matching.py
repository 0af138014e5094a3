"""Matches Relax patterns against what variables hold, in time that does not grow with the graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tvm import relax
from tvm.ir import Op
from tvm.relax import dpl
from tvm.relax.dpl import DFPattern

from tkc.passes.graph.bindings import Graph


def matched(graph: Graph, pattern: DFPattern, expr: relax.Expr) -> dict[DFPattern, relax.Expr] | None:
    """What each part of ``pattern`` stands for where the whole matches ``expr``; ``None`` where it does not.

    The parts' values come as the variables that hold them. Only the bindings within reach of the pattern are handed to
    Relax's matcher, which looks at every one that it is given.
    """
    value = graph.value(expr)
    operators = _root_operators(pattern)
    if operators is not None and _operator(value) not in operators:
        return None
    found = pattern.extract_matched_expr(value, _bindings_above(graph, value, _depth(pattern)))
    return None if found is None else {part: graph.variable(part_value) for part, part_value in found.items()}


def _bindings_above(graph: Graph, value: relax.Expr, depth: int) -> dict[relax.Var, relax.Expr]:
    """The bindings that ``value`` reads, those that these read, and so on, ``depth`` times."""
    bindings: dict[relax.Var, relax.Expr] = {}
    values = [value]
    for _ in range(depth):
        read = {var for value in values for var in graph.reads(value) if var not in bindings and var in graph.var2val}
        values = [graph.var2val[var] for var in read]
        bindings.update(zip(read, values, strict=True))
    return bindings


def _operator(value: relax.Expr) -> str | None:
    return value.op.name if isinstance(value, relax.Call) and isinstance(value.op, Op) else None


@cache
def _root_operators(pattern: DFPattern) -> frozenset[str | None] | None:
    """The operators that a match can have at its root (``None`` among them: no operator); ``None`` for any."""
    if isinstance(pattern, dpl.OrPattern):
        left, right = _root_operators(pattern.left), _root_operators(pattern.right)
        return None if left is None or right is None else left | right
    if isinstance(pattern, dpl.TupleGetItemPattern):
        return frozenset({None})
    if isinstance(pattern, dpl.CallPattern) and isinstance(pattern.op, dpl.ExprPattern):
        root = {pattern.op.expr.name}
        # Relax's matcher takes x * y / z and x / z * y for each other.
        return frozenset(root | _INTERCHANGED if root <= _INTERCHANGED else root)
    return None


_INTERCHANGED = {"relax.multiply", "relax.divide"}


@cache
def _depth(pattern: DFPattern) -> int:
    """How many bindings a match of ``pattern`` can be deep, its root left out."""
    below = 0 if isinstance(pattern, dpl.OrPattern) else 1
    return max((below + _depth(part) for part in _parts(pattern)), default=0)


def _parts(pattern: DFPattern) -> Iterator[DFPattern]:
    if isinstance(pattern, dpl.OrPattern | dpl.AndPattern):
        yield from (pattern.left, pattern.right)
    elif isinstance(pattern, dpl.CallPattern):
        yield from pattern.args or ()
    elif isinstance(pattern, dpl.TuplePattern):
        yield from pattern.fields
    elif isinstance(pattern, dpl.TupleGetItemPattern):
        yield pattern.tuple
    elif isinstance(pattern, dpl.AttrPattern | dpl.DataTypePattern | dpl.StructInfoPattern | dpl.ShapePattern):
        yield pattern.pattern
    elif isinstance(pattern, dpl.NotPattern):
        yield pattern.reject
