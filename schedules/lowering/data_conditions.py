"""Comparisons, selections and integer quotients of what a model computes, hidden from TVM's simplifier.

It visits the condition of a selection several times, to learn from it for each branch, and the operands of a
comparison again as their difference. Where conditions contain selections (an ELU of an ELU), its time is exponential.
Of data there is nothing to learn: as arguments of functions that TVM does not know they are visited once.
Quotients and remainders of data it rewrites as if integers never wrapped around, and wrongly: six steps of
``(x * 5 + i) % 1000`` lose the last remainder. Quotients of positions rounded down, and what remains, are hidden where
``index_divisions`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import DataType, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.lowering.integer_floors import floor_of_data, floor_of_positions
from tkc.schedules.lowering.pure_functions import register_pure

FLOORS = (tirx.FloorDiv, tirx.FloorMod)
_CONDITIONS = (tirx.Select, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_DIVISIONS = (*FLOORS, tirx.Div, tirx.Mod)
_NODES = [f"tirx.{kind.__name__}" for kind in (*_CONDITIONS, *_DIVISIONS)]
_HIDDEN = {kind: register_pure(f"tkc.{kind.__name__.lower()}") for kind in (*_CONDITIONS, *FLOORS)}
_HIDDEN_DATA = {kind: register_pure(f"tkc.data_{kind.__name__.lower()}") for kind in _DIVISIONS}
_DATA_NAMES = frozenset(op.name for op in _HIDDEN_DATA.values())
_SHOWN = {op.name: kind for table in (_HIDDEN, _HIDDEN_DATA) for kind, op in table.items()}


def hide_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with such expressions of data as calls; :func:`shown` takes them back.

    Those of positions stay: bounds of loads and of loops follow from them.
    """
    return func.with_body(_with_hidden_data(func.body))


def without_conditions(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr``, all of which is of data, as :func:`hide_conditions` writes it."""
    return ir_transform(tirx.Evaluate(expr), None, hidden, [f"tirx.{kind.__name__}" for kind in _CONDITIONS]).value


def hidden(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr``, a comparison, selection or floor, as such a call."""
    return tirx.call_intrin(expr.dtype, _HIDDEN[type(expr)], *_operands(expr))


def shown(call: tirx.Call, *, on_cuda: bool) -> tirx.PrimExpr | None:
    """What ``call`` was, a floor spelled out; ``None`` for any other call."""
    if not _is_hidden(call):
        return None
    kind, (*others, a, b) = _SHOWN[call.op.name], call.args
    if a.dtype != b.dtype:  # TVM narrows integers, one by one where it does not know the function
        wider = max(a.dtype, b.dtype, key=lambda dtype: DataType(dtype).bits)
        a, b = a.astype(wider), b.astype(wider)
    if kind not in FLOORS:
        return kind(*others, a, b)
    if call.op.same_as(_HIDDEN_DATA[kind]):
        return floor_of_data(a, b, kind, on_cuda=on_cuda)
    return floor_of_positions(a, b, kind)


def _with_hidden_data(body: tirx.Stmt) -> tirx.Stmt:
    def replaced(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(expr, _DIVISIONS):
            if "int" not in expr.dtype or not _divides_data(expr):
                return None
            return tirx.call_intrin(expr.dtype, _HIDDEN_DATA[type(expr)], expr.a, expr.b)
        return hidden(expr) if _is_on_data(expr) else None

    return ir_transform(body, None, replaced, _NODES)


def _operands(expr: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    return [expr.a, expr.b]


def _is_on_data(expr: tirx.PrimExpr) -> bool:
    """Whether something is loaded, or is a float, in what decides ``expr``; its own conditions are hidden already."""
    undecided = [expr.condition] if isinstance(expr, tirx.Select) else [expr.a, expr.b]
    return _any_part(
        undecided, lambda node: isinstance(node, tirx.BufferLoad) or "float" in node.dtype or _is_hidden(node)
    )


def _divides_data(expr: tirx.PrimExpr) -> bool:
    """Whether something is loaded in an operand of the division ``expr``.

    Loads of local memory do not count: sorts and searches keep positions in it.
    """

    def is_data(node: tirx.PrimExpr) -> bool:
        if isinstance(node, tirx.BufferLoad):
            return node.buffer.scope() != "local"
        return isinstance(node, tirx.Call) and getattr(node.op, "name", None) in _DATA_NAMES

    return _any_part([expr.a, expr.b], is_data)


def _any_part(undecided: list[tirx.PrimExpr], wanted: Callable[[tirx.PrimExpr], bool]) -> bool:
    """Whether an expression, or what it is computed from but for indices of loads, is ``wanted``."""
    while undecided:
        node = undecided.pop()
        if wanted(node):
            return True
        names = ("a", "b", "value", "body", "base", "condition", "true_value", "false_value")
        parts = [getattr(node, name, None) for name in names]
        undecided += [part for part in parts if isinstance(part, tirx.PrimExpr)]
        undecided.extend(node.args if isinstance(node, tirx.Call) else ())
    return False


def _is_hidden(node: tirx.PrimExpr) -> bool:
    return isinstance(node, tirx.Call) and getattr(node.op, "name", None) in _SHOWN
