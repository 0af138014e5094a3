"""Expressions of floats that TVM's simplifier would change as if there were no NaN, infinity or rounding.

TVM 0.25 takes ``x - x`` for zero and ``(x + y) - y`` for ``x``, ``x == x`` for true, a product with the constant zero,
or its quotient, for zero, a sum with it for the other number (-0.0 + 0.0 is 0.0), and ``not x < y`` for ``y <= x``,
which the branches of a selection then are known to have. A quotient by the constant zero it does not take at all.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

_COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")
_NODES = [f"tirx.{name}" for name in ("Add", "Sub", "Mul", "Div", *_COMPARISONS)]


def _registered(name: str) -> Op:
    """A function of one value that TVM knows nothing of but that it has no effects, and exists of vectors too."""
    tvm.ir.register_op_attr(name, "TCallEffectKind", tirx.CallEffectKind.Pure.value)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    return Op.get(name)


_GUARD = _registered("tkc.guard")


def guard_floats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with guards around what the simplifier must not see of floats' arithmetic and comparisons.

    :func:`unguarded` takes them off again.
    """
    return func.with_body(ir_transform(func.body, None, _guarded, _NODES))


def with_guards(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    """``expr`` as :func:`guard_floats` writes it."""
    return ir_transform(tirx.Evaluate(expr), None, _guarded, _NODES).value


def unguarded(call: tirx.Call) -> tirx.PrimExpr | None:
    """What :func:`guard_floats` put a guard around; ``None`` for any other call."""
    return call.args[0] if call.op.same_as(_GUARD) else None


def _guarded(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
    if "float" not in expr.a.dtype:
        return None
    if isinstance(expr, tirx.Sub):
        return tirx.Sub(expr.a, _guard(expr.b))
    if isinstance(expr, tirx.Add | tirx.Mul):
        return type(expr)(_guard_zero(expr.a), _guard_zero(expr.b))
    if isinstance(expr, tirx.Div):
        return tirx.Div(_guard_zero(expr.a), _guard_zero(expr.b))
    if isinstance(expr, tirx.EQ | tirx.NE):  # each is the other's opposite, of NaN too
        return type(expr)(expr.a, _guard(expr.b))
    return _guard(expr)


def _guard_zero(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    value = expr
    while isinstance(value, tirx.Broadcast | tirx.Cast):  # what casts a constant becomes one
        value = value.value
    return _guard(expr) if isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == 0 else expr


def _guard(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.call_intrin(expr.dtype, _GUARD, expr)
