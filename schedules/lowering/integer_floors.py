"""Integer quotients rounded down, and what remains, by those rounded towards zero, which processors have."""

from __future__ import annotations

import tvm
from tvm import tirx

from tkc.schedules.lowering.cuda_functions import call_cuda
from tkc.schedules.lowering.held_values import bound

_CUDA_TYPES = {"int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t"}
_CUDA_FLOORS: dict[type[tirx.PrimExpr], str] = {
    tirx.FloorDiv: "return a / b - (a % b != 0 && ((a % b) ^ b) < 0);",
    tirx.FloorMod: "return a % b != 0 && ((a % b) ^ b) < 0 ? a % b + b : a % b;",
}


def floor_of_positions(a: tirx.PrimExpr, b: tirx.PrimExpr, kind: type[tirx.PrimExpr]) -> tirx.PrimExpr:
    """``a // b`` or ``a % b`` as ``kind``, ``FloorDiv`` or ``FloorMod``, says; ``a`` and ``b`` stand there repeatedly.

    No variables: where an expression is looked at in two contexts, the analyzer would bind one to two ranges.
    """
    return _unsigned(a, b, kind) if a.dtype.startswith("uint") else _signed(a, b, kind)


def floor_of_data(a: tirx.PrimExpr, b: tirx.PrimExpr, kind: type[tirx.PrimExpr], *, on_cuda: bool) -> tirx.PrimExpr:
    """:func:`floor_of_positions` in which ``a`` and ``b`` stand once, so that chains of them grow linearly.

    ``HoldValues`` puts the variables of the CPU's into memory.
    """
    element = a.dtype.partition("x")[0]
    if a.dtype.startswith("uint"):
        return _unsigned(a, b, kind)
    power = _power_of_two(b)
    if power is not None:
        if kind is tirx.FloorMod:
            return tirx.bitwise_and(a, tirx.const((1 << power) - 1, a.dtype))
        return tirx.shift_right(a, tirx.const(power, a.dtype))
    if on_cuda:
        return call_cuda(f"tkc_{kind.__name__.lower()}_{element}", _CUDA_TYPES[element], _CUDA_FLOORS[kind], a, b)
    return bound(a, lambda a: bound(b, lambda b: _signed(a, b, kind)))


def _unsigned(a: tirx.PrimExpr, b: tirx.PrimExpr, kind: type[tirx.PrimExpr]) -> tirx.PrimExpr:
    return tirx.Div(a, b) if kind is tirx.FloorDiv else tirx.Mod(a, b)


def _signed(a: tirx.PrimExpr, b: tirx.PrimExpr, kind: type[tirx.PrimExpr]) -> tirx.PrimExpr:
    rest, zero = tirx.Mod(a, b), tirx.const(0, a.dtype)
    if isinstance(b, tirx.IntImm) and b.value > 0:  # a stands twice, and not four times
        if kind is tirx.FloorDiv:
            return tirx.Div(a, b) - tirx.LT(rest, zero).astype(a.dtype)
        sign = tirx.shift_right(rest, tirx.const(tvm.DataType(a.dtype).bits - 1, a.dtype))
        return rest + tirx.bitwise_and(sign, b)
    differs = tirx.And(tirx.NE(rest, zero), tirx.LT(tirx.bitwise_xor(rest, b), zero))
    if kind is tirx.FloorDiv:
        return tirx.Div(a, b) - differs.astype(a.dtype)
    return tirx.Select(differs, rest + b, rest)


def _power_of_two(divisor: tirx.PrimExpr) -> int | None:
    """The exponent where ``divisor`` is a constant power of two."""
    number = divisor.value if isinstance(divisor, tirx.Broadcast) else divisor
    if not isinstance(number, tirx.IntImm) or number.value <= 0 or number.value & (number.value - 1):
        return None
    return int(number.value).bit_length() - 1
