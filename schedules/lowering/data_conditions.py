"""Comparisons and selections of what a model computes, hidden from TVM's simplifier.

It visits the condition of a selection several times, to learn from it for each branch, and the operands of a
comparison again as their difference. Where conditions contain selections (an ELU of an ELU), its time is exponential.
Of data there is nothing to learn: as arguments of functions that TVM does not know they are visited once.
Quotients of positions rounded down, and what remains, are hidden where ``index_divisions`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import DataType, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.lowering.pure_functions import register_pure

FLOORS = (tirx.FloorDiv, tirx.FloorMod)
_CONDITIONS = (tirx.Select, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_NODES = [f"tirx.{kind.__name__}" for kind in _CONDITIONS]
_HIDDEN = {kind: register_pure(f"tkc.{kind.__name__.lower()}") for kind in (*_CONDITIONS, *FLOORS)}
_SHOWN = {op.name: kind for kind, op in _HIDDEN.items()}


def hide_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with such expressions of data as calls; :func:`shown` takes them back.

    Those of positions stay: bounds of loads and of loops follow from them.
    """
    return func.with_body(_hidden_where(func.body, _is_on_data))


def without_conditions(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr``, all of which is of data, as :func:`hide_conditions` writes it."""
    return _hidden_where(tirx.Evaluate(expr), lambda _: True).value


def hidden(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr``, a comparison, selection or floor, as such a call."""
    return tirx.call_intrin(expr.dtype, _HIDDEN[type(expr)], *_operands(expr))


def shown(call: tirx.Call) -> tirx.PrimExpr | None:
    """What ``call`` was, a floor spelled out; ``None`` for any other call."""
    if not _is_hidden(call):
        return None
    kind, (*others, a, b) = _SHOWN[call.op.name], call.args
    if a.dtype != b.dtype:  # TVM narrows integers, one by one where it does not know the function
        wider = max(a.dtype, b.dtype, key=lambda dtype: DataType(dtype).bits)
        a, b = a.astype(wider), b.astype(wider)
    return _floor(a, b, kind) if kind in FLOORS else kind(*others, a, b)


def _floor(a: tirx.PrimExpr, b: tirx.PrimExpr, kind: type[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The quotient of ``a`` and ``b`` rounded down, or what remains, by those rounded towards zero."""
    if a.dtype.startswith("uint"):
        return tirx.Div(a, b) if kind is tirx.FloorDiv else tirx.Mod(a, b)
    # No variables: where an expression is looked at in two contexts, the analyzer would bind one to two ranges.
    rest, zero = tirx.Mod(a, b), tirx.const(0, a.dtype)
    differs = tirx.And(tirx.NE(rest, zero), tirx.LT(tirx.bitwise_xor(rest, b), zero))
    if kind is tirx.FloorDiv:
        return tirx.Div(a, b) - differs.astype(a.dtype)
    return tirx.Select(differs, rest + b, rest)


def _hidden_where(body: tirx.Stmt, wanted: Callable[[tirx.PrimExpr], bool]) -> tirx.Stmt:
    return ir_transform(body, None, lambda expr: hidden(expr) if wanted(expr) else None, _NODES)


def _operands(expr: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    return [expr.a, expr.b]


def _is_on_data(expr: tirx.PrimExpr) -> bool:
    """Whether something is loaded, or is a float, in what decides ``expr``; its own conditions are hidden already."""
    undecided = [expr.condition] if isinstance(expr, tirx.Select) else [expr.a, expr.b]
    while undecided:
        node = undecided.pop()
        if isinstance(node, tirx.BufferLoad) or "float" in node.dtype or _is_hidden(node):
            return True
        parts = [getattr(node, name, None) for name in ("a", "b", "value", "body", "base")]
        undecided += [part for part in parts if isinstance(part, tirx.PrimExpr)]
        undecided.extend(node.args if isinstance(node, tirx.Call) else ())
    return False


def _is_hidden(node: tirx.PrimExpr) -> bool:
    return isinstance(node, tirx.Call) and getattr(node.op, "name", None) in _SHOWN
