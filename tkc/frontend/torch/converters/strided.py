"""Views whose elements lie at even steps of others', and tensors into which such are written, as loops of one index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op
from tvm.tirx.stmt_functor import substitute

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size

Index = Sequence[tirx.PrimExpr]


def _elements(
    b: Emitter, name: str, shape: Sequence[Size], element: Callable[..., tirx.PrimExpr], *tensors: relax.Expr
) -> relax.Expr:
    """``element(index, *tensors)`` at each index of ``shape``."""

    def loops(*given: te.Tensor) -> te.Tensor:
        # By the sizes of what is given: FuseTIR takes others for those of another tensor.
        own = {
            size: mine
            for tensor, placeholder in zip(tensors, given, strict=True)
            for size, mine in zip(tensor.struct_info.shape, placeholder.shape, strict=True)
            if isinstance(size, tirx.Var)
        }
        sizes = [substitute(size, own) if isinstance(size, tirx.PrimExpr) else size for size in shape]
        return te.compute(sizes, lambda *index: element(index, *given), name=f"T_{name}")

    return b.emit_te(name, loops, *tensors)


def unfold(b: Emitter, x: relax.Expr, dim: int, size: int, step: int) -> relax.Expr:
    """Windows of ``size`` elements along ``dim``, each ``step`` after the one before, as a new last axis."""
    if not x.struct_info.ndim:
        return b.reshape(x, b.shape)
    dim %= x.struct_info.ndim

    def element(i: Index, x: te.Tensor) -> tirx.PrimExpr:
        return x(*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1])

    return _elements(b, "unfold", b.shape, element, x)


def diagonal(b: Emitter, x: relax.Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> relax.Expr:
    """The elements of which the index on ``dim2`` is ``offset`` more than that on ``dim1``, as a new last axis."""
    dim1, dim2 = dim1 % x.struct_info.ndim, dim2 % x.struct_info.ndim

    def element(i: Index, x: te.Tensor) -> tirx.PrimExpr:
        others = iter(i[:-1])
        own = {dim1: i[-1] + max(-offset, 0), dim2: i[-1] + max(offset, 0)}
        return x(*(own[axis] if axis in own else next(others) for axis in range(len(i) + 1)))

    return _elements(b, "diagonal", b.shape, element, x)


def diagonal_scatter(
    b: Emitter, x: relax.Expr, source: relax.Expr, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> relax.Expr:
    """``x`` with ``source`` in place of its :func:`diagonal`."""
    dim1, dim2 = dim1 % x.struct_info.ndim, dim2 % x.struct_info.ndim

    def element(i: Index, x: te.Tensor, source: te.Tensor) -> tirx.PrimExpr:
        others = [i[axis] for axis in range(len(i)) if axis not in (dim1, dim2)]
        written = source(*others, i[dim1] - max(-offset, 0))
        return tirx.if_then_else(i[dim2] - i[dim1] == offset, written, x(*i))

    return _elements(b, "diagonal_scatter", b.shape, element, x, b.cast(source, b.dtype))


def strided_slice_written(
    b: Emitter, x: relax.Expr, source: relax.Expr, dim: int, first: Size, step: Size
) -> relax.Expr:
    """``x`` with ``source`` in place of every ``step``-th element along ``dim``, from ``first`` on."""
    length = source.struct_info.shape[dim]

    def element(i: Index, x: te.Tensor, source: te.Tensor) -> tirx.PrimExpr:
        place = tirx.floordiv(i[dim] - first, step)
        there = tirx.all(i[dim] >= first, tirx.floormod(i[dim] - first, step) == 0, place < length)
        return tirx.if_then_else(there, source(*i[:dim], place, *i[dim + 1 :]), x(*i))

    return _elements(b, "slice_scatter", b.shape, element, x, source)


def as_strided_scatter(
    b: Emitter, x: relax.Expr, source: relax.Expr, size: Any, stride: Any, offset: Size | None = None
) -> relax.Expr:
    """``x`` with ``source`` written to the elements that a view by strides has; the last one where several are one."""
    flat = b.emit(b.reshape(x, [-1]))
    position = b.emit(b.reshape(strided_positions(b, size, stride, offset), [-1]))
    values = b.emit(b.reshape(b.cast(source, b.dtype), [-1]))
    return b.reshape(b.emit(op.scatter_elements(flat, position, values, 0)), b.shape)


def as_strided(b: Emitter, x: relax.Expr, size: list[Size], stride: list[Size], offset: Size | None) -> relax.Expr:
    """The element at ``offset + sum(index * stride)`` of the memory of a contiguous ``x``."""
    return op.take(b.emit(b.reshape(x, [-1])), strided_positions(b, size, stride, offset), axis=0)


def strided_positions(b: Emitter, size: Sequence[Size], stride: Sequence[Size], offset: Size | None) -> relax.Expr:
    """Where the elements of a view by strides lie in the memory that it is of, int64 of ``size``."""
    position: relax.Expr = b.tensor(0 if offset is None else offset, "int64")
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        steps = b.emit(op.multiply(b.emit(op.arange(extent, dtype="int64")), b.tensor(step, "int64")))
        shape = [extent if i == axis else 1 for i in range(len(size))]
        position = b.emit(op.add(position, b.emit(b.reshape(steps, shape))))
    return position


CONVERTERS: dict[str, Converter] = {
    "aten.unfold.default": unfold,
    "aten.diagonal.default": diagonal,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.as_strided.default": as_strided,
    "aten.as_strided_copy.default": as_strided,
    "aten.as_strided_scatter.default": as_strided_scatter,
}
