"""Operators that order elements."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
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


def topk(b: Emitter, x: relax.Expr, k: int, dim: int = -1, largest: bool = True, _: bool = True) -> list[relax.Expr]:
    """The ``k`` largest (or smallest) elements along ``dim``, always sorted, and their positions."""
    if not isinstance(k, int):
        raise b.unsupported("a number of elements that depends on sizes is not supported. Give k as a number.")
    pair = b.emit(op.topk(b.wide(x), k, dim % x.struct_info.ndim, "both", largest, "int64"))
    return [b.emit(relax.TupleGetItem(pair, i)) for i in range(2)]


CONVERTERS: dict[str, Converter] = {
    "aten.sort.default": as_vectors(sort),
    "aten.sort.stable": as_vectors(sort_stable),
    "aten.argsort.default": as_vectors(argsort),
    "aten.topk.default": as_vectors(topk),
}
