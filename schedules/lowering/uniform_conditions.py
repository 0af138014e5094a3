"""Conditions that hold for all elements of a vector or for none, written so that TVM sees it.

Where each element may be read from elsewhere, as in concatenations along the axis that vectors run along, TVM takes the
vector apart. Parts that are whole vectors long (the halves that rotary embeddings exchange) leave one condition a
vector.
"""

from __future__ import annotations

from tvm import arith, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import nodes, static

_LAZY = "tirx.if_then_else"

# Along a vector, a difference that begins at a multiple of its length stays below zero, or not: these comparisons ask
# that of the first operand less the second, the others (LE, GT) of the second less the first.
_OF_DIFFERENCE = (tirx.LT, tirx.GE)


def decide_for_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for the CPU, with such conditions asked of the first element of each vector."""

    def of_loop(loop: tirx.For) -> tirx.For | None:
        lanes = static(loop.extent)
        if loop.kind != tirx.ForKind.VECTORIZED or lanes is None or not isinstance(loop.body, tirx.SBlockRealize):
            return None
        realize = loop.body
        along = _along(realize, loop.loop_var, lanes)
        if along is None:
            return None
        block = realize.block
        body = ir_transform(block.body, None, lambda call: _asked_once(call, along, lanes), ["tirx.Call"])
        if body.same_as(block.body):
            return None
        decided = tirx.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )
        realize = tirx.SBlockRealize(realize.iter_values, realize.predicate, decided)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, realize, annotations=loop.annotations)

    return func.with_body(ir_transform(func.body, None, of_loop, ["tirx.For"]))


def _along(realize: tirx.SBlockRealize, lane: tirx.Var, lanes: int) -> tirx.Var | None:
    """The one iterator that runs along the vector, if each vector begins at a multiple of its length."""
    analyzer = arith.Analyzer()
    found = [
        (iterator.var, value)
        for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if lane in undefined_vars(value)
    ]
    if len(found) != 1:
        return None
    ((variable, value),) = found
    first = analyzer.simplify(value - lane.astype(value.dtype))
    is_aligned = lane not in undefined_vars(first) and analyzer.can_prove_equal(tirx.floormod(first, lanes), 0)
    return variable if is_aligned else None


def _asked_once(call: tirx.Call, along: tirx.Var, lanes: int) -> tirx.Call | None:
    """A lazy selection, whose comparisons of positions ``along`` the vector are asked of its first."""
    if call.op.name != _LAZY or along not in undefined_vars(call.args[0]):
        return None
    first = tirx.floordiv(along, lanes) * lanes

    def once(comparison: tirx.PrimExpr) -> tirx.PrimExpr | None:
        return substitute(comparison, {along: first}) if _is_same_for_all(comparison, along, lanes) else None

    comparisons = ["tirx.LT", "tirx.LE", "tirx.GT", "tirx.GE"]
    condition = ir_transform(tirx.Evaluate(call.args[0]), None, once, comparisons).value
    return tirx.Call(call.dtype, call.op, [condition, *call.args[1:]])


def _is_same_for_all(comparison: tirx.PrimExpr, along: tirx.Var, lanes: int) -> bool:
    """Whether ``comparison`` has one answer for ``lanes`` positions ``along`` a vector from a multiple of that on."""
    if "int" not in comparison.a.dtype or any(isinstance(node, tirx.BufferLoad) for node in nodes(comparison)):
        return False
    sides = (comparison.a, comparison.b) if isinstance(comparison, _OF_DIFFERENCE) else (comparison.b, comparison.a)
    analyzer = arith.Analyzer()
    rest = analyzer.simplify(sides[0] - sides[1] - along)
    return along not in undefined_vars(rest) and analyzer.can_prove_equal(tirx.floormod(rest, lanes), 0)
