"""Arithmetic of floats that TVM's simplifier would change as if there were no NaN, infinity or rounding.

TVM 0.25 takes ``x - x`` for zero and ``(x + y) - y`` for ``x``, a product with the constant zero, or its quotient, for
zero, and a sum with it for the other number (-0.0 + 0.0 is 0.0). The zero may be an integer that is cast: it takes
``i - i`` of those for zero, and rightly. A quotient by what it finds to be zero (a constant,
``n - n`` of whole numbers) it does not take at all. It takes ``x == x`` for true, too, and ``not x < y`` for
``y <= x``: ``data_conditions`` hides comparisons.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels.pure_functions import register_pure

_NODES = [f"tirx.{name}" for name in ("Add", "Sub", "Mul", "Div")]


_GUARD = register_pure("tkc.guard")


def guard_floats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with guards around what the simplifier must not see of floats' arithmetic.

    :func:`unguarded` takes them off again.
    """
    return func.with_body(ir_transform(func.body, None, _guarded, _NODES))


def with_guards(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr`` as :func:`guard_floats` writes it."""
    return ir_transform(tirx.Evaluate(expr), None, _guarded, _NODES).value


def unguarded(call: tirx.Call) -> tirx.PrimExpr | None:
    """What :func:`guard_floats` put a guard around; ``None`` for any other call."""
    return call.args[0] if is_guarded(call) else None


def is_guarded(expr: tirx.PrimExpr) -> bool:
    """Whether ``expr`` is a guard."""
    return isinstance(expr, tirx.Call) and expr.op.same_as(_GUARD)


def _guarded(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
    if "float" not in expr.a.dtype:
        return None
    if isinstance(expr, tirx.Sub):
        return tirx.Sub(expr.a, guarded(expr.b))
    if isinstance(expr, tirx.Div) and not _is_constant(expr.b):
        return tirx.Div(_guard_zero(expr.a), guarded(expr.b))
    return type(expr)(_guard_zero(expr.a), _guard_zero(expr.b))


def _guard_zero(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    return guarded(expr) if _may_become_zero(_uncast(expr)) else expr


def _may_become_zero(number: tirx.PrimExpr) -> bool:
    """Whether the simplifier may find ``number``, which is cast to a float, to be zero: it may any computed integer."""
    if isinstance(number, tirx.FloatImm | tirx.IntImm):
        return bool(number.value == 0)
    return "float" not in number.dtype and not isinstance(number, tirx.BufferLoad)


def _is_constant(expr: tirx.PrimExpr) -> bool:
    return isinstance(_uncast(expr), tirx.FloatImm | tirx.IntImm)


def _uncast(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    while isinstance(expr, tirx.Broadcast | tirx.Cast):  # what casts a constant becomes one
        expr = expr.value
    return expr


def guarded(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr`` where the simplifier does not see what it is."""
    return tirx.call_intrin(expr.dtype, _GUARD, expr)
