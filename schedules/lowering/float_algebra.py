"""Arithmetic of floats that TVM's simplifier would change as if there were no NaN, infinity or rounding.

TVM 0.25 takes ``x - x`` for zero and ``(x + y) - y`` for ``x``, a product with the constant zero, or its quotient, for
zero, and a sum with it for the other number (-0.0 + 0.0 is 0.0). The zero may be an integer that is cast: it takes
``i - i`` of those for zero, and rightly. A quotient by what it finds to be zero (a constant,
``n - n`` of whole numbers) it does not take at all. It takes ``x == x`` for true, too, and ``not x < y`` for
``y <= x``: ``data_conditions`` hides comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels.pure_functions import register_pure
from tkc.schedules.blocks import nodes

_NODES = [f"tirx.{name}" for name in ("Add", "Sub", "Mul", "Div")]


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
    if "float" not in expr.a.dtype:
        return None
    a, b = (guarded(each) if _is_zero(each) else each for each in (expr.a, expr.b))
    if isinstance(expr, tirx.Sub):
        return tirx.Sub(expr.a, guarded(expr.b))
    if isinstance(expr, tirx.Div) and not _is_constant(expr.b):
        return tirx.Div(_guard_integer(a, sizes), guarded(expr.b))
    if isinstance(expr, tirx.Mul):
        # Zero times a number that is known is zero.
        return tirx.Mul(
            a if _is_constant(expr.b) else _guard_integer(a, sizes),
            b if _is_constant(expr.a) else _guard_integer(b, sizes),
        )
    return type(expr)(a, b)


def _guard_integer(expr: tirx.PrimExpr, sizes: set[tirx.Var]) -> tirx.PrimExpr:
    """``expr`` guarded where it is a cast integer that the simplifier may find to be zero: computed, and no size."""
    integer = _uncast(expr)
    if "float" in integer.dtype or isinstance(integer, tirx.BufferLoad):
        return expr
    of_sizes = _variables([integer]) <= sizes and not any(isinstance(node, tirx.BufferLoad) for node in nodes(integer))
    return expr if of_sizes else guarded(expr)


def _is_zero(expr: tirx.PrimExpr) -> bool:
    return _is_constant(expr) and bool(_uncast(expr).value == 0)


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
