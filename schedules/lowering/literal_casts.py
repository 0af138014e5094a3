"""Conversions of literals, which TVM computes itself, and refuses where the other type does not hold the number.

``full(7).bool()`` and ``full(-1).to(uint8)`` become such where a constant is inlined into what reads it. They are
computed here as processors do: integers keep their lower bits, and what is not 0 is true.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import DataType, arith, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes

_UNKNOWN = (tirx.Var, tirx.ProducerLoad, tirx.BufferLoad, tirx.Call)


def convert_literals(func: tirx.PrimFunc, *, on_cuda: bool) -> tirx.PrimFunc:
    """``func`` with the results of conversions of literals to integers and truth values."""

    def converted(cast: tirx.Cast) -> tirx.PrimExpr | None:
        if not cast.dtype.startswith(("bool", "int", "uint")) or DataType(cast.dtype).lanes != 1:
            return None
        if any(isinstance(node, _UNKNOWN) for node in nodes(cast.value)):
            return None
        literal = arith.Analyzer().simplify(cast.value)
        if not isinstance(literal, tirx.IntImm | tirx.FloatImm):
            return None
        return _literal(_converted(literal.value, cast.dtype, on_cuda=on_cuda), cast.dtype)

    return func.with_body(ir_transform(func.body, None, converted, ["tirx.Cast"]))


def _literal(number: int, dtype: str) -> tirx.PrimExpr:
    if number < 1 << 63:
        return tirx.IntImm(dtype, number)
    halves = (tirx.IntImm("uint32", half) for half in (number & 0xFFFFFFFF, number >> 32))
    return tirx.call_intrin(dtype, "tirx.large_uint_imm", *halves)


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
