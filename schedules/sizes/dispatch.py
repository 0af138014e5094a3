"""One function that chooses at run time, by its sizes, among several scheduled forms of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from tkc.schedules.sizes.parameters import with_parameters_of
from tkc.schedules.sizes.symbolic import dimensions


@dataclass(frozen=True)
class Variant:
    """A scheduled form of a function, where it was measured to be best, and a name that equal forms share.

    ``measured_at`` are the values of the function's :func:`~tkc.schedules.sizes.dimensions`.
    """

    measured_at: tuple[int, ...]
    scheduled: tirx.PrimFunc
    name: str


def dispatch(func: tirx.PrimFunc, variants: Sequence[Variant]) -> tirx.PrimFunc:
    """``func`` computed by the variant that was measured nearest to the sizes of the call.

    A dimension between two measured ones belongs to the nearer on a logarithmic scale: the border is their geometric
    mean. Of several dimensions, the first decides first. On a GPU the host chooses, and every variant launches kernels
    of its own. The variants compute what ``func`` does at every size, and have its parameters, one for one.
    """
    tree = _decide(list(variants), 0)
    if isinstance(tree, Variant):
        return with_parameters_of(func, tree.scheduled)
    return _with_root(func, _statement(func, tree, itertools.count()))


def chosen(func: tirx.PrimFunc, condition: tirx.PrimExpr, one: tirx.PrimFunc, other: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` computed by ``one`` where ``condition`` holds of its sizes, else by the ``other``.

    Both compute what ``func`` does at every size, and have its parameters, one for one.
    """
    forms = (_renamed_root(with_parameters_of(func, form).body, number) for number, form in enumerate((one, other)))
    conditions = (condition, tirx.Not(condition))
    return _with_root(func, tirx.SeqStmt([_if(holds, form) for holds, form in zip(conditions, forms, strict=True)]))


def _with_root(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    return func.with_body(tirx.SBlockRealize([], True, tirx.SBlock([], [], [], "root", body)))


@dataclass(frozen=True)
class _Choice:
    """``below`` where the dimension of that position is at most ``border``, else ``above``."""

    dimension: int
    border: int
    below: _Choice | Variant
    above: _Choice | Variant


def _decide(variants: list[Variant], dimension: int) -> _Choice | Variant:
    if len({variant.name for variant in variants}) == 1:
        return variants[0]
    groups: dict[int, list[Variant]] = {}
    for variant in sorted(variants, key=lambda variant: variant.measured_at[dimension]):
        groups.setdefault(variant.measured_at[dimension], []).append(variant)
    (_, first), *others = ((value, _decide(group, dimension + 1)) for value, group in reversed(groups.items()))
    tree, upper = first, max(groups)
    for value, below in others:
        tree = _choose(dimension, math.isqrt(value * upper), below, tree)
        upper = value
    return tree


def _choose(dimension: int, border: int, below: _Choice | Variant, above: _Choice | Variant) -> _Choice | Variant:
    """The choice between the two; without the border, if what is just above it is the same as what is below."""
    if _same(below, above):
        return above
    if isinstance(above, _Choice) and above.dimension == dimension and _same(below, above.below):
        return above
    return _Choice(dimension, border, below, above)


def _same(one: _Choice | Variant, other: _Choice | Variant) -> bool:
    if isinstance(one, Variant) or isinstance(other, Variant):
        return isinstance(one, Variant) and isinstance(other, Variant) and one.name == other.name
    return (
        (one.dimension, one.border) == (other.dimension, other.border)
        and _same(one.below, other.below)
        and _same(one.above, other.above)
    )


def _statement(func: tirx.PrimFunc, tree: _Choice | Variant, numbers: itertools.count[int]) -> tirx.Stmt:
    if isinstance(tree, Variant):
        return _renamed_root(with_parameters_of(func, tree.scheduled).body, next(numbers))
    below = dimensions(func)[tree.dimension] <= tree.border
    branches = ((below, tree.below), (tirx.Not(below), tree.above))
    return tirx.SeqStmt([_if(condition, _statement(func, branch, numbers)) for condition, branch in branches])


def _if(condition: tirx.PrimExpr, body: tirx.Stmt) -> tirx.For:
    """A loop of one iteration or none: TVM takes a GPU's kernels inside a loop, but not inside a condition."""
    return tirx.For(tirx.Var("chosen", "int32"), 0, tirx.Cast("int32", condition), tirx.ForKind.SERIAL, body)


def _renamed_root(realize: tirx.SBlockRealize, number: int) -> tirx.SBlockRealize:
    """Each variant's root block is an ordinary block in the whole, and needs a name of its own."""
    block = realize.block
    named = tirx.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        f"variant_{number}",
        block.body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return tirx.SBlockRealize(realize.iter_values, realize.predicate, named)
