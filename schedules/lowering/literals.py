"""Conversions and arithmetic of literals, which TVM computes itself: not as processors do, or not at all.

It refuses a conversion where the other type does not hold the number.

``full(7).bool()`` and ``full(-1).to(uint8)`` become such where a constant is inlined into what reads it. They are
computed here as processors do: integers keep their lower bits, and what is not 0 is true. Of a literal whose bits are
taken for another type, as sorting does, CUDA code would take the address. Arithmetic of literals that gives NaN, as
``inf - inf``, is NaN from here on: where TVM finds that out later, it finds NaN unequal to itself, and fails.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from tvm import DataType, arith, tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes

_ISNAN = Op.get("tirx.isnan")
_UNKNOWN = (tirx.Var, tirx.ProducerLoad, tirx.BufferLoad, tirx.Call)
_Number: TypeAlias = np.ndarray[tuple[()], np.dtype[Any]]
_ARITHMETIC: dict[type[tirx.PrimExpr], Callable[[_Number, _Number], _Number]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.Div: operator.truediv,
}
_NODES = ["tirx.Call", "tirx.Cast", *(f"tirx.{kind.__name__}" for kind in _ARITHMETIC)]


def compute_literals(func: tirx.PrimFunc, *, on_cuda: bool) -> tirx.PrimFunc:
    """``func`` with what conversions of literals to integers and truth values come to, and NaN of their arithmetic."""

    def converted(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(expr, tirx.Call):
            return _is_nan(expr) if expr.op.same_as(_ISNAN) else _bits(expr)
        if type(expr) in _ARITHMETIC:
            return _nan(expr)
        if not expr.dtype.startswith(("bool", "int", "uint")) or DataType(expr.dtype).lanes != 1:
            return None
        number = _number(expr.value)
        return None if number is None else tirx.const(_converted(number, expr.dtype, on_cuda=on_cuda), expr.dtype)

    return func.with_body(ir_transform(func.body, None, converted, _NODES))


def _is_nan(call: tirx.Call) -> tirx.PrimExpr | None:
    number = _computed(call.args[0])
    return None if number is None else tirx.const(int(math.isnan(number)), "bool")


def _nan(expr: tirx.PrimExpr) -> tirx.FloatImm | None:
    """NaN, if it is what ``expr``, arithmetic of literals, comes to."""
    if DataType(expr.dtype).lanes != 1 or "float" not in expr.dtype:
        return None
    result = _computed(expr)
    return tirx.FloatImm(expr.dtype, math.nan) if result is not None and math.isnan(result) else None


def _number(expr: tirx.PrimExpr) -> float | None:
    """The number that ``expr`` is, if it is made of literals alone."""
    if any(isinstance(node, _UNKNOWN) for node in nodes(expr)):
        return None
    if "float" in expr.dtype and (result := _computed(expr)) is not None:
        return float(result)
    literal = arith.Analyzer().simplify(expr)
    return literal.value if isinstance(literal, tirx.IntImm | tirx.FloatImm) else None


def _computed(expr: tirx.PrimExpr) -> _Number | None:
    """What sums, differences, products, quotients and conversions of literals come to in floats, each rounded.

    TVM's simplifier takes a difference of two infinities for 0. ``None`` for any other expression.
    """
    if isinstance(expr, tirx.FloatImm | tirx.IntImm):
        return np.asarray(expr.value).astype(_numpy_type(expr.dtype))
    if isinstance(expr, tirx.Cast) and "float" in expr.dtype:
        value = _computed(expr.value)
        return None if value is None else value.astype(_numpy_type(expr.dtype))
    if type(expr) not in _ARITHMETIC or "float" not in expr.dtype:
        return None
    if (b := _computed(expr.b)) is None or (a := _computed(expr.a)) is None:
        return None
    with np.errstate(all="ignore"):
        return _ARITHMETIC[type(expr)](a, b)


def _numpy_type(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _bits(call: tirx.Call) -> tirx.PrimExpr | None:
    """The integer that has the bits of a literal float, if ``call`` asks for it."""
    if getattr(call.op, "name", "") != "tirx.reinterpret" or not isinstance(call.args[0], tirx.FloatImm):
        return None
    if not call.dtype.startswith(("int", "uint")) or DataType(call.dtype).lanes != 1:
        return None
    return bits_of(call.args[0], call.dtype)


def bits_of(literal: tirx.FloatImm, dtype: str) -> tirx.IntImm:
    """The integer of ``dtype``, as wide as ``literal``, that has its bits."""
    number = np.asarray(literal.value).astype(_numpy_type(literal.dtype))
    return tirx.IntImm(dtype, int(number.view(dtype)))


def _converted(number: float, dtype: str, *, on_cuda: bool) -> int:
    if dtype == "bool":
        return int(number != 0)
    if isinstance(number, int):
        return int(np.array(number).astype(dtype))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if least <= number <= most:
        return int(number)
    if not on_cuda:
        return least  # as x86's conversions give for all that they cannot express
    return 0 if math.isnan(number) else least if number < least else most
