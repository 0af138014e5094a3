"""Tensors of 8-bit codes, widened and less their zero points, as quantized operators read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import Op

from tkc.passes.graph.bindings import dtype, has_known_shape, permuted_axes, shape, static

_BYTES = ("int8", "uint8")
_WIDE = ("int32", "float32")

Lookup = Callable[[relax.Var], relax.Expr | None]
"""The value of a variable."""


@dataclass(frozen=True)
class Codes:
    """``tensor`` of int8 or uint8 less ``zero``: a number, or a tensor of one, or of one for each row or column."""

    tensor: relax.Expr
    zero: int | relax.Expr
    transposed: bool = False
    """Whether the last two axes of ``tensor`` are to change places."""


def codes_of(expr: relax.Expr, lookup: Lookup, axis: int) -> Codes | None:
    """The codes that ``expr``, in int32 or float32, holds; ``None`` if it holds anything else.

    Zero points are of all elements, or of those of ``axis`` (from behind, negative).
    """
    value = _value(expr, lookup)
    if _is(value, "relax.permute_dims"):
        rank = value.struct_info.ndim
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        if axis not in (-1, -2) or rank < 2 or permuted_axes(value) != swapped:
            return None
        found = codes_of(value.args[0], lookup, -3 - axis)
        return found and Codes(found.tensor, found.zero, not found.transposed)
    zero: int | relax.Expr | None = 0
    if _is(value, "relax.subtract"):
        value, moved = value.args
        if not (has_known_shape(value) and has_known_shape(moved)):
            return None
        zero = _zero(moved, lookup, value.struct_info.ndim, axis)
        value = _value(value, lookup)
    if zero is None or not _is(value, "relax.astype") or dtype(value) not in _WIDE:
        return None
    (tensor,) = value.args
    return Codes(tensor, zero) if dtype(tensor) in _BYTES and has_known_shape(tensor) else None


def _zero(expr: relax.Expr, lookup: Lookup, rank: int, axis: int) -> int | relax.Expr | None:
    """The zero point: a number that is known, what it is a view or a cast of, or ``None`` for one of another form."""
    sizes = [1] * (rank - expr.struct_info.ndim) + [static(size) for size in shape(expr)]
    if len(sizes) != rank or any(size != 1 for place, size in enumerate(sizes) if place != axis % rank):
        return None
    value = _value(expr, lookup)
    while _is(value, "relax.reshape") or (_is(value, "relax.astype") and dtype(value.args[0]) in _BYTES):
        expr = value.args[0]
        value = _value(expr, lookup)
    if isinstance(value, relax.Constant):
        numbers = value.data.numpy()
        if numbers.size and np.all(numbers == numbers.flat[0]):
            return int(numbers.flat[0])
    return expr


def _value(expr: relax.Expr, lookup: Lookup) -> relax.Expr:
    """What ``expr`` holds, behind variables."""
    while isinstance(expr, relax.Var) and (found := lookup(expr)) is not None:
        expr = found
    return expr


def _is(value: relax.Expr, *names: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names


def constants(exprs: Sequence[relax.Expr | int], weights: set[relax.Var]) -> bool:
    """Whether all of ``exprs`` are the same at every call."""
    return all(isinstance(each, (int, relax.Constant)) or each in weights for each in exprs)
