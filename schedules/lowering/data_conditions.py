"""What TVM's simplifier must not see of the numbers that a model computes: conditions, quotients, extrema, conversions.

It visits the condition of a selection several times, to learn from it for each branch, and the operands of a
comparison again as their difference. Where conditions contain selections (an ELU of an ELU), its time is exponential.
Of data there is nothing to learn: as arguments of functions that TVM does not know they are visited once.

It also takes integers of 32 and 64 bits for numbers that never wrap around. Six steps of ``(x * 5 + i) % 1000`` lose
the last remainder, ``max(x + 1, x + 2)`` becomes ``x + 2``, and a sum that is converted to more bits becomes a sum in
more bits. On ``x - x - 1`` of unsigned numbers it fails. Quotients of positions rounded down, and what remains, are
hidden where ``index_divisions`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import DataType, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels.pure_functions import SUBTRACT, register_pure
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.float_algebra import is_guarded
from tkc.schedules.lowering.integer_floors import floor_of_data, floor_of_positions

FLOORS = (tirx.FloorDiv, tirx.FloorMod)
_CONDITIONS = (tirx.Select, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_DIVISIONS = (*FLOORS, tirx.Div, tirx.Mod)
_EXTREMA = (tirx.Max, tirx.Min)
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)
_HIDEABLE = (*_CONDITIONS, *_EXTREMA, tirx.Cast)
_NODES = [f"tirx.{kind.__name__}" for kind in (*_HIDEABLE, *_DIVISIONS, tirx.Sub)]
_HIDDEN = {
    **{kind: register_pure(f"tkc.{kind.__name__.lower()}") for kind in (*_HIDEABLE, *FLOORS)},
    tirx.Sub: register_pure(SUBTRACT),
}
_HIDDEN_DATA = {kind: register_pure(f"tkc.data_{kind.__name__.lower()}") for kind in _DIVISIONS}
_DATA_NAMES = frozenset(op.name for op in _HIDDEN_DATA.values())
_SHOWN = {op.name: kind for table in (_HIDDEN, _HIDDEN_DATA) for kind, op in table.items()}


_PARTS = ("a", "b", "value", "body", "base", "true_value", "false_value")
_CHOICES = frozenset({"tirx.if_then_else", _HIDDEN[tirx.Select].name})


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


def hidden_floor(call: tirx.Call) -> type[tirx.PrimExpr] | None:
    """The quotient of positions, or remainder, that ``call`` hides; ``None`` for any other call."""
    return next((kind for kind in FLOORS if call.op.same_as(_HIDDEN[kind])), None)


def shown(call: tirx.Call, *, on_cuda: bool) -> tirx.PrimExpr | None:
    """What ``call`` was, a floor spelled out; ``None`` for any other call."""
    if not _is_hidden(call):
        return None
    kind = _SHOWN[call.op.name]
    if kind is tirx.Cast:
        return tirx.Cast(call.dtype, *call.args)
    *others, a, b = call.args
    if a.dtype != b.dtype:  # TVM narrows integers, one by one where it does not know the function
        wider = max(a.dtype, b.dtype, key=lambda dtype: DataType(dtype).bits)
        a, b = a.astype(wider), b.astype(wider)
    if kind not in FLOORS:
        return kind(*others, a, b)
    if call.op.same_as(_HIDDEN_DATA[kind]):
        return floor_of_data(a, b, kind, on_cuda=on_cuda)
    return floor_of_positions(a, b, kind)


def _with_hidden_data(body: tirx.Stmt) -> tirx.Stmt:
    holding = _hold_data(body)

    def replaced(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(expr, _DIVISIONS):
            if "int" not in expr.dtype or not _any_part([expr.a, expr.b], partial(_is_data, holding=holding)):
                return None
            return tirx.call_intrin(expr.dtype, _HIDDEN_DATA[type(expr)], expr.a, expr.b)
        if isinstance(expr, (tirx.Cast, *_EXTREMA)) and not _may_overflow(expr):
            return None
        if isinstance(expr, tirx.Sub):
            return hidden(expr) if expr.dtype.startswith("uint") else None
        return hidden(expr) if _is_on_data(expr) else None

    return ir_transform(body, None, replaced, _NODES)


def _may_overflow(expr: tirx.Cast | tirx.Max | tirx.Min) -> bool:
    """Whether ``expr`` is an extremum of integers, or makes wider ones, and sums or products are among its operands.

    Not where the result so far of a reduction is an operand: what divides reductions among threads looks for those.
    """
    operands = _operands(expr)
    if any("int" not in each.dtype for each in (expr, *operands)):
        return False
    if isinstance(expr, tirx.Cast):
        if DataType(expr.dtype).bits <= DataType(expr.value.dtype).bits:
            return False
    elif any(isinstance(each, tirx.BufferLoad) for each in operands) and not _read_the_same(*operands):
        return False
    return _any_part(operands, lambda node: isinstance(node, _ARITHMETIC))


def _read_the_same(a: tirx.PrimExpr, b: tirx.PrimExpr) -> bool:
    read = [{node.buffer for node in nodes(each) if isinstance(node, tirx.BufferLoad)} for each in (a, b)]
    return bool(set.intersection(*read))


def _operands(expr: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    if isinstance(expr, tirx.Cast):
        return [expr.value]
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    return [expr.a, expr.b]


def _is_on_data(expr: tirx.PrimExpr) -> bool:
    """Whether something is loaded, or is a float, in what decides ``expr``; its own conditions are hidden already."""
    undecided = [expr.condition] if isinstance(expr, tirx.Select) else _operands(expr)
    return _any_part(
        undecided, lambda node: isinstance(node, tirx.BufferLoad) or "float" in node.dtype or _is_hidden(node)
    )


def _hold_data(body: tirx.Stmt) -> set[tirx.Var]:
    """The local memory into which numbers are copied that the function loads, or what is computed from such.

    Sorts and searches keep positions in local memory, and loaded numbers only decide which: conditions do not count.
    """
    stores: list[tuple[tirx.Var, tirx.PrimExpr]] = []

    def note(node: tirx.Stmt) -> None:
        if isinstance(node, tirx.BufferStore) and node.buffer.scope() == "local":
            stores.append((node.buffer.data, node.value))

    tirx.stmt_functor.post_order_visit(body, note)
    holding: set[tirx.Var] = set()
    while True:
        found = {
            memory
            for memory, value in stores
            if memory not in holding and _any_part([value], partial(_is_data, holding=holding), conditions=False)
        }
        if not found:
            return holding
        holding |= found


def _is_data(node: tirx.PrimExpr, holding: set[tirx.Var]) -> bool:
    if isinstance(node, tirx.BufferLoad):
        return node.buffer.scope() != "local" or node.buffer.data in holding
    return isinstance(node, tirx.Call) and getattr(node.op, "name", None) in _DATA_NAMES


def _any_part(
    undecided: list[tirx.PrimExpr], wanted: Callable[[tirx.PrimExpr], bool], *, conditions: bool = True
) -> bool:
    """Whether an expression, or what it is computed from but for indices of loads, is ``wanted``.

    Without ``conditions``, what only chooses among values is not looked at.
    """
    while undecided:
        node = undecided.pop()
        if wanted(node):
            return True
        if is_guarded(node) and "int" in node.dtype:
            continue  # a size, which is seen no further either
        parts = [getattr(node, name, None) for name in ((*_PARTS, "condition") if conditions else _PARTS)]
        undecided += [part for part in parts if isinstance(part, tirx.PrimExpr)]
        if isinstance(node, tirx.Call):
            chooses = getattr(node.op, "name", None) in _CHOICES
            undecided.extend(node.args[1:] if chooses and not conditions else node.args)
    return False


def _is_hidden(node: tirx.PrimExpr) -> bool:
    return isinstance(node, tirx.Call) and getattr(node.op, "name", None) in _SHOWN
