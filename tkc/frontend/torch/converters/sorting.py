"""Operators that order elements."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size
from tkc.frontend.torch.converters.vectors import as_vectors


def sort(b: Emitter, x: relax.Expr, dim: int = -1, descending: bool = False) -> list[relax.Expr]:
    """The sorted values and where they came from, as ``argsort`` and ``gather_elements``."""
    order = argsort(b, x, dim, descending)
    return [b.emit(op.gather_elements(x, order, dim % x.struct_info.ndim)), order]


def sort_stable(b: Emitter, x: relax.Expr, _: Any, dim: int = -1, descending: bool = False) -> list[relax.Expr]:
    """As :func:`sort`, whose lowering keeps equal elements in order."""
    return sort(b, x, dim, descending)


def argsort(b: Emitter, x: relax.Expr, dim: int = -1, descending: bool = False) -> relax.Expr:
    """The order that sorts ``x`` along ``dim``; TVM compares bfloat16 wrongly, float32 orders it the same."""
    return b.emit(op.argsort(b.wide(x), dim % x.struct_info.ndim, descending, "int64"))


def topk(b: Emitter, x: relax.Expr, k: Size, dim: int = -1, largest: bool = True, _: bool = True) -> list[relax.Expr]:
    """The ``k`` largest (or smallest) elements along ``dim``, always sorted, and their positions.

    All are sorted where ``k`` depends on sizes.
    """
    axis, every = dim % x.struct_info.ndim, not isinstance(k, int)  # TVM takes a number that is known
    pair = b.emit(op.topk(b.wide(x), -1 if every else k, axis, "both", largest, "int64"))
    found = [b.emit(relax.TupleGetItem(pair, i)) for i in range(2)]
    if not every:
        return found
    return [b.emit(op.strided_slice(each, [axis], [0], [k], assume_inbound=True)) for each in found]


CONVERTERS: dict[str, Converter] = {
    "aten.sort.default": as_vectors(sort),
    "aten.sort.stable": as_vectors(sort_stable),
    "aten.argsort.default": as_vectors(argsort),
    "aten.topk.default": as_vectors(topk),
}
