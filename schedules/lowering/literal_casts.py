"""Conversions of literals, which TVM computes itself, and refuses where the other type does not hold the number.

``full(7).bool()`` and ``full(-1).to(uint8)`` become such where a constant is inlined into what reads it. They are
computed here as processors do: integers keep their lower bits, and what is not 0 is true. Of a literal whose bits are
taken for another type, as sorting does, CUDA code would take the address.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from tvm import DataType, arith, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes

_UNKNOWN = (tirx.Var, tirx.ProducerLoad, tirx.BufferLoad, tirx.Call)


def convert_literals(func: tirx.PrimFunc, *, on_cuda: bool) -> tirx.PrimFunc:
    """``func`` with the results of conversions of literals to integers and truth values."""

    def converted(cast: tirx.Cast | tirx.Call) -> tirx.PrimExpr | None:
        if isinstance(cast, tirx.Call):
            return _bits(cast)
        if not cast.dtype.startswith(("bool", "int", "uint")) or DataType(cast.dtype).lanes != 1:
            return None
        if any(isinstance(node, _UNKNOWN) for node in nodes(cast.value)):
            return None
        literal = arith.Analyzer().simplify(cast.value)
        if not isinstance(literal, tirx.IntImm | tirx.FloatImm):
            return None
        return tirx.const(_converted(literal.value, cast.dtype, on_cuda=on_cuda), cast.dtype)

    return func.with_body(ir_transform(func.body, None, converted, ["tirx.Cast", "tirx.Call"]))


def _bits(call: tirx.Call) -> tirx.PrimExpr | None:
    """The integer that has the bits of a literal float, if ``call`` asks for it."""
    if getattr(call.op, "name", "") != "tirx.reinterpret" or not isinstance(call.args[0], tirx.FloatImm):
        return None
    if not call.dtype.startswith(("int", "uint")) or DataType(call.dtype).lanes != 1:
        return None
    number = np.array(call.args[0].value).astype(ml_dtypes.bfloat16 if (of := call.args[0].dtype) == "bfloat16" else of)
    return tirx.const(int(number.view(call.dtype)), call.dtype)


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
