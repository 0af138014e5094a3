"""Arithmetic of bfloat16 on the CPU: computed in float32, and rounded where PyTorch rounds or the result is stored.

TVM 0.25 has a pass for it, which leaves out what expressions and statements bind to variables: LLVM crashes on
arithmetic that is left, and conversions that are left take bits for numbers. It also drops the model's own conversions
to bfloat16 and back. So nothing is left to it here, but to store bfloat16 as integers of 16 bits.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.wide_intermediates import widen_intermediates

_NARROW, _WIDE = "bfloat16", "float32"
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_REINTERPRET = Op.get("tirx.reinterpret")
_ROUNDED = [f"tirx.{kind.__name__}" for kind in (*_ARITHMETIC, *_COMPARISONS, tirx.Select, tirx.Call, tirx.Cast)]


def compute_in_float32(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with no arithmetic of bfloat16, and no conversions from or to it.

    A sum of products, say, is rounded once, but what the model converts to bfloat16 is rounded there. What stays
    inside of the function is float32.
    """
    if not any(_is_narrow(node) for node in nodes(func.body)):
        return func
    # In this order: conversions that are made on the way round nothing that is computed on.
    rounded = func.with_body(ir_transform(func.body, None, _conversion, ["tirx.Cast"]))
    wide = widen_intermediates(rounded)
    body = ir_transform(_wide_variables(wide.body), None, _computed, _ROUNDED)
    return func.with_body(ir_transform(body, None, _conversion, ["tirx.Cast"]))


def _is_narrow(node: object) -> bool:
    return getattr(node, "dtype", None) == _NARROW


def _conversion(cast: tirx.Cast) -> tirx.PrimExpr | None:
    """A conversion to bfloat16 by its bits."""
    return None if cast.dtype != _NARROW else _rounded(cast.value.astype(_WIDE))


def _computed(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
    """``expr`` in float32, and converted to bfloat16 if that is its dtype; ``None`` where nothing changes."""
    if isinstance(expr, tirx.Cast):
        return _wide(expr.value).astype(expr.dtype) if _is_narrow(expr.value) else None
    if isinstance(expr, _COMPARISONS):
        return type(expr)(_wide(expr.a), _wide(expr.b)) if _is_narrow(expr.a) else None
    if isinstance(expr, tirx.Call):
        if expr.op.same_as(_REINTERPRET) or not any(map(_is_narrow, expr.args)):
            return None
        dtype = _WIDE if _is_narrow(expr) else expr.dtype
        return tirx.Call(dtype, expr.op, [_wide(arg) for arg in expr.args]).astype(expr.dtype)
    if not _is_narrow(expr):
        return None
    if isinstance(expr, tirx.Select):
        return tirx.Select(expr.condition, _wide(expr.true_value), _wide(expr.false_value)).astype(_NARROW)
    return type(expr)(_wide(expr.a), _wide(expr.b)).astype(_NARROW)


def _wide(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """``value`` in float32, if it is bfloat16; what was converted from float32 on the way is taken as it was."""
    if not _is_narrow(value):
        return value
    if isinstance(value, tirx.FloatImm):
        return tirx.const(value.value, _WIDE)
    if isinstance(value, tirx.Cast):
        return value.value
    bits = tirx.reinterpret("uint16", value).astype("uint32")
    return tirx.reinterpret(_WIDE, tirx.shift_left(bits, tirx.const(16, "uint32")))


def _rounded(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """The bfloat16 nearest to ``value``, of two the even one; a NaN stays one."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(value.value, _NARROW)
    exact = tirx.Var("exact", _WIDE)
    bits = tirx.reinterpret("uint32", exact)
    half = tirx.const(16, "uint32")
    up = tirx.const(0x7FFF, "uint32") + tirx.bitwise_and(tirx.shift_right(bits, half), tirx.const(1, "uint32"))
    quiet = tirx.bitwise_or(bits, tirx.const(0x400000, "uint32"))
    chosen = tirx.Select(tirx.NE(exact, exact), quiet, bits + up)
    return tirx.reinterpret(_NARROW, tirx.Let(exact, value, tirx.shift_right(chosen, half).astype("uint16")))


def _wide_variables(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with variables of float32 for those of bfloat16."""
    values: dict[tirx.Var, tirx.PrimExpr] = {}

    def bound(node: tirx.Bind | tirx.Let) -> tirx.Bind | tirx.Let | None:
        if not _is_narrow(node.var):
            return None
        wide = tirx.Var(node.var.name, _WIDE)
        values[node.var] = wide.astype(_NARROW)
        value = node.value.astype(_WIDE)
        return tirx.Bind(wide, value) if isinstance(node, tirx.Bind) else tirx.Let(wide, value, node.body)

    body = ir_transform(body, None, bound, ["tirx.Bind", "tirx.Let"])
    return substitute(body, values) if values else body
