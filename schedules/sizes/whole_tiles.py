"""Guards that unknown sizes need, asked once for a tile instead of for each of its elements.

A loop split over an unknown size guards every element, because its last tile may stick out, and no guarded loop stays
vectorized and in registers. Here each tile is two: one without guards, run where the whole tile lies inside, and the
guarded one, whose own inner tiles are treated in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm_ffi
from tvm import arith, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import conjuncts, nodes, static

# Each level repeats the code of the tile; the second bounds what the last tile of a size costs.
_LEVELS = 2
_INFINITY = arith.int_set.pos_inf()


def unguard_whole_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled, with its tiles along unknown sizes free of guards wherever the whole tile lies inside."""

    def divided(loop: tirx.For) -> tirx.For | None:
        if static(loop.extent) is not None or any(_is_unknown_loop(node) for node in nodes(loop.body)):
            return None
        body = _divide(loop.body, _LEVELS)
        return None if body.same_as(loop.body) else _with_body(loop, body)

    body = ir_transform(func.body, None, divided, ["tirx.For"])
    return func if body.same_as(func.body) else func.with_body(body)


def _is_unknown_loop(node: object) -> bool:
    """Whether ``node`` is a loop of unknown length around guarded blocks, whose tiles are its own affair."""
    return isinstance(node, tirx.For) and static(node.extent) is None and next(_guards(node.body), None) is not None


def _divide(tile: tirx.Stmt, levels: int) -> tirx.Stmt:
    """``tile``, the body of a loop, as a choice between itself without guards and with them."""
    guards = list(_guards(tile))
    if not guards or levels == 0:
        return tile
    inside = _lies_inside(guards, tile)
    if inside is None:
        return tile
    if len(guards) == 1 and not any(variable in _defined(tile) for variable in undefined_vars(guards[0])):
        return tirx.IfThenElse(inside, _without_guards(tile), None)  # the whole tile is inside, or none of it
    return tirx.IfThenElse(inside, _without_guards(tile), _divide_below(tile, guards, levels - 1))


def _divide_below(tile: tirx.Stmt, guards: list[tirx.PrimExpr], levels: int) -> tirx.Stmt:
    """``tile`` divided inside the outermost of its loops of more than one iteration that the guards depend on."""
    guarded = {variable for guard in guards for variable in undefined_vars(guard)}

    def divided(loop: tirx.For) -> tirx.Stmt | None:
        if loop.loop_var in guarded and static(loop.extent) != 1:
            return _with_body(loop, _divide(loop.body, levels))
        return None

    # Before its children, so that what is inside a divided loop is left alone.
    return ir_transform(tile, divided, None, ["tirx.For"])


def _guards(statement: tirx.Stmt) -> Iterator[tirx.PrimExpr]:
    """The predicates of the blocks in ``statement`` that are not plainly true."""
    for node in nodes(statement):
        if isinstance(node, tirx.SBlockRealize) and static(node.predicate) is None:
            yield node.predicate


def _lies_inside(guards: list[tirx.PrimExpr], tile: tirx.Stmt) -> tirx.PrimExpr | None:
    """A condition under which every guard holds, of variables from outside ``tile``; ``None`` if none is found."""
    analyzer = arith.Analyzer()
    ranges, defined = _ranges(tile), {*_defined(tile), _INFINITY}
    conditions: list[tirx.PrimExpr] = []
    for part in (part for guard in guards for part in conjuncts(guard)):
        if not isinstance(part, tirx.LT):
            return None
        most = analyzer.int_set(part.a - part.b, ranges).max_value
        if any(variable in defined for variable in undefined_vars(most)):
            return None
        conditions.append(analyzer.simplify(most < 0))
    return tirx.all(*_distinct(conditions))


def _ranges(statement: tirx.Stmt) -> dict[tirx.Var, arith.IntSet]:
    """What the variables of the loops in ``statement`` run over, as far as that is constant."""
    return {
        node.loop_var: arith.IntervalSet(node.min, node.min + node.extent - 1)
        for node in nodes(statement)
        if isinstance(node, tirx.For) and static(node.extent) is not None
    }


def _defined(statement: tirx.Stmt) -> set[tirx.Var]:
    """The variables of the loops and the blocks in ``statement``."""
    found: set[tirx.Var] = set()
    for node in nodes(statement):
        if isinstance(node, tirx.For):
            found.add(node.loop_var)
        elif isinstance(node, tirx.SBlock):
            found.update(iterator.var for iterator in node.iter_vars)
    return found


def _distinct(conditions: list[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
    found: list[tirx.PrimExpr] = []
    for condition in conditions:
        if not any(tvm_ffi.structural_equal(condition, other) for other in found):
            found.append(condition)
    return found


def _without_guards(statement: tirx.Stmt) -> tirx.Stmt:
    def unguarded(realize: tirx.SBlockRealize) -> tirx.SBlockRealize:
        return tirx.SBlockRealize(realize.iter_values, True, realize.block)

    return ir_transform(statement, None, unguarded, ["tirx.SBlockRealize"])


def _with_body(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step
    )
