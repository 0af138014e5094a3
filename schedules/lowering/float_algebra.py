"""Arithmetic of floats that TVM's simplifier would change as if there were no NaN, infinity or rounding.

TVM 0.25 takes ``x - x`` for zero and ``(x + y) - y`` for ``x``, a product with zero, or its quotient, for zero, and a
sum with it for the other number (-0.0 + 0.0 is 0.0). The zero is a constant, or an integer that it finds to be zero,
such as ``i - i``, and that is cast. A quotient by such a zero it does not take at all. It takes ``x == x`` for true,
too, and ``not x < y`` for ``y <= x``: ``data_conditions`` hides comparisons. Of two constants it takes the extremum
as C++ does, and of 1 and NaN the minimum is 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels.pure_functions import register_pure
from tkc.schedules.blocks import nodes

_EXTREMA = (tirx.Max, tirx.Min)
_NODES = [*(f"tirx.{name}" for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")), "ir.FloatImm"]


_GUARD = register_pure("tkc.guard")


def guard_floats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with guards around what the simplifier must not see of floats' arithmetic.

    :func:`unguarded` takes them off again.
    """
    shapes = [size for buffer in func.buffer_map.values() for size in buffer.shape]
    return func.with_body(ir_transform(func.body, None, partial(_guarded, sizes=_variables(shapes)), _NODES))


def with_guards(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr``, all of which is of data, as :func:`guard_floats` writes it."""
    return ir_transform(tirx.Evaluate(expr), None, partial(_guarded, sizes=set()), _NODES).value


def unguarded(call: tirx.Call) -> tirx.PrimExpr | None:
    """What :func:`guard_floats` put a guard around; ``None`` for any other call."""
    return call.args[0] if is_guarded(call) else None


def is_guarded(expr: tirx.PrimExpr) -> bool:
    """Whether ``expr`` is a guard."""
    return isinstance(expr, tirx.Call) and expr.op.same_as(_GUARD)


def _guarded(expr: tirx.PrimExpr, sizes: set[tirx.Var]) -> tirx.PrimExpr | None:
    if isinstance(expr, tirx.FloatImm):
        return guarded(expr) if math.isnan(expr.value) else None
    if "float" not in expr.a.dtype:
        return None
    if isinstance(expr, _EXTREMA):
        return type(expr)(*(guarded(each) if _may_become_nan(each) else each for each in (expr.a, expr.b)))
    if isinstance(expr, tirx.Sub):
        return tirx.Sub(expr.a, guarded(expr.b))
    a, b = (_guard_zero(one, other, sizes) for one, other in ((expr.a, expr.b), (expr.b, expr.a)))
    if isinstance(expr, tirx.Div) and not _is_constant(expr.b):
        b = guarded(expr.b)
    return type(expr)(a, b)


def _guard_zero(expr: tirx.PrimExpr, other: tirx.PrimExpr, sizes: set[tirx.Var]) -> tirx.PrimExpr:
    """``expr`` guarded where it is zero, or where the simplifier may find it to be and ``other`` is no constant."""
    if _is_constant(expr):
        return guarded(expr) if _uncast(expr).value == 0 else expr
    return guarded(expr) if not _is_constant(other) and _is_computed(_uncast(expr), sizes) else expr


def _may_become_nan(expr: tirx.PrimExpr) -> bool:
    """Whether ``expr`` is computed from constants and positions alone, such as a difference of infinities."""
    return not _is_constant(expr) and not any(isinstance(node, tirx.BufferLoad) for node in nodes(expr))


def _is_computed(number: tirx.PrimExpr, sizes: set[tirx.Var]) -> bool:
    """Whether ``number`` is an integer that is more than an element of a tensor, and not a size."""
    if "float" in number.dtype or isinstance(number, tirx.BufferLoad):
        return False
    return not _variables([number]) <= sizes or any(isinstance(node, tirx.BufferLoad) for node in nodes(number))


def _variables(exprs: Sequence[tirx.PrimExpr]) -> set[tirx.Var]:
    return {variable for expr in exprs for variable in undefined_vars(expr)}


def _is_constant(expr: tirx.PrimExpr) -> bool:
    return isinstance(_uncast(expr), tirx.FloatImm | tirx.IntImm)


def _uncast(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    while isinstance(expr, tirx.Broadcast | tirx.Cast):  # what casts a constant becomes one
        expr = expr.value
    return expr


def guarded(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr`` where the simplifier does not see what it is."""
    return tirx.call_intrin(expr.dtype, _GUARD, expr)
