"""Writes to places that indices name: index_put, scatter, index_add, index_copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter, source_of
from tkc.frontend.torch.converters.indices import (
    broadcast_shape,
    flat_index,
    from_front,
    indexed_first,
    inside,
    no_elements,
    product,
    spread,
    with_masks,
)
from tkc.frontend.torch.converters.masks import Indices, with_places
from tkc.frontend.torch.converters.symbols import Size
from tkc.frontend.torch.converters.vectors import as_vectors


def index_put(b: Emitter, x: relax.Expr, indices: Indices, values: relax.Expr, accumulate: bool = False) -> relax.Expr:
    """``x`` with ``values`` written (or added) at ``indices``, as ``scatter_elements`` over rows; with one boolean mask
    and values that are the same wherever it holds, as ``where``."""
    values, indices = b.cast(values, b.dtype), with_masks(b, indices)
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1 and indices[dims[0]].struct_info.dtype == "bool":  # type: ignore[union-attr]  # given
        written = _masked(b, x, dims[0], indices[dims[0]], values, accumulate)
        if written is not None:
            return written
    whole = list(x.struct_info.shape)
    x, indices = with_places(b, x, indices)
    out = b.emit(_written_at(b, x, indices, values, accumulate))
    return out if b.has_shape(out, whole) else b.reshape(out, whole)


def _written_at(b: Emitter, x: relax.Expr, indices: Indices, values: relax.Expr, accumulate: bool) -> relax.Expr:
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1:
        (position,) = (index for index in from_front(b, x, indices) if index is not None)
        return _slices_written(b, x, dims[0], position, values, "add" if accumulate else "update")
    front, kept, order = indexed_first(b, x, indices)
    shape = list(front.struct_info.shape)
    indexed, rest = shape[: len(kept)], shape[len(kept) :]
    position, count = flat_index(b, kept, indexed)
    flat = b.emit(b.reshape(front, [product(indexed), *rest]))
    if rest:
        position = b.emit(b.reshape(position, [count, *[1] * len(rest)]))
        position = b.emit(op.broadcast_to(position, [count, *rest]))
    rows = _value_rows(b, values, kept, dims, count, rest)
    out = b.emit(_scatter(b, flat, position, rows, 0, "add" if accumulate else "update"))
    out = b.emit(b.reshape(out, shape))
    return out if order == sorted(order) else op.permute_dims(out, [order.index(dim) for dim in range(len(order))])


def _masked(
    b: Emitter, x: relax.Expr, dim: int, mask: relax.Expr, values: relax.Expr, accumulate: bool
) -> relax.Expr | None:
    """``x`` with ``values`` where ``mask``, of the axes from ``dim`` on, holds; ``None`` if there is one for each."""
    rank, masked = x.struct_info.ndim, mask.struct_info.ndim
    behind = rank - dim - masked
    shape = list(values.struct_info.shape)
    if len(shape) > behind:  # one of the axes is for the places where the mask holds
        at = len(shape) - behind - 1
        if not b.equal(shape[at], 1):
            return None
        values = b.emit(b.reshape(values, [*shape[:at], *[1] * masked, *shape[at + 1 :]]))
    mask = b.emit(b.reshape(mask, [*mask.struct_info.shape, *[1] * behind]))
    if accumulate:
        values = b.emit((op.logical_or if b.dtype == "bool" else op.add)(x, values))
    return op.where(mask, values, x)


def _value_rows(
    b: Emitter, values: relax.Expr, kept: list[relax.Expr], dims: list[int], count: Any, rest: list[Any]
) -> relax.Expr:
    """``values`` broadcast to the indexed elements, one row an index."""
    indexed = broadcast_shape(b, [list(given.struct_info.shape) for given in kept])
    # Where the indexed dimensions are neighbours, their values stand in their place.
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    whole = spread(b, values, [*rest[:before], *indexed, *rest[before:]])
    if before:
        width = range(before, before + len(indexed))
        whole = b.emit(op.permute_dims(whole, [*width, *range(before), *range(width.stop, len(indexed) + len(rest))]))
    return whole if len(indexed) == 1 else b.emit(b.reshape(whole, [count, *rest]))


def _scatter(
    b: Emitter, x: relax.Expr, indices: relax.Expr, values: relax.Expr, dim: int, reduction: str
) -> relax.Expr:
    """``scatter_elements``; truth values, which TVM does not calculate with, as numbers."""
    if x.struct_info.dtype != "bool" or reduction == "update":
        return op.scatter_elements(x, indices, values, dim, reduction)
    numbers = [b.cast(operand, "int32") for operand in (x, values)]
    return op.astype(b.emit(op.scatter_elements(numbers[0], indices, numbers[1], dim, reduction)), "bool")


def _slices_written(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, values: relax.Expr, reduction: str
) -> relax.Expr:
    """``x`` with ``values`` (broadcast to the indexed slices) written at ``indices`` along ``dim``."""
    shape = list(x.struct_info.shape)
    count = product(list(indices.struct_info.shape))
    values = spread(b, values, [*shape[:dim], *indices.struct_info.shape, *shape[dim + 1 :]])
    shape[dim] = count
    if indices.struct_info.ndim != 1:
        values = b.emit(b.reshape(values, shape))
    rows = indices
    if not b.has_shape(indices, shape):
        rows = b.emit(b.reshape(indices, [count if axis == dim else 1 for axis in range(len(shape))]))
        rows = b.emit(op.broadcast_to(rows, shape))
    return _scatter(b, x, rows, values, dim, reduction)


def index_copy(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr) -> relax.Expr:
    """``x`` with the slices of ``source`` written at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    indices = inside(b, indices, b.node.args[2], x.struct_info.shape[dim], writes=True)
    return _slices_written(b, x, dim, indices, source, "update")


def _first_values(b: Emitter, values: relax.Expr, shape: Sequence[Size]) -> relax.Expr:
    """As many of ``values`` as there are indices; PyTorch takes more."""
    pairs = zip(values.struct_info.shape, shape, strict=True)
    late = [size >= wanted for size, wanted in pairs if b.data_sizes.decide(size) or b.data_sizes.decide(wanted)]
    if late:
        message = f"{b.node.target} ({source_of(b.node)}) has fewer values than indices in this call"
        values = b.data_sizes.checking(message, values, relax.PrimValue(tirx.Cast("int64", tirx.all(*late))))
    axes = list(range(len(shape)))
    return b.emit(op.strided_slice(values, axes, [0] * len(shape), list(shape), assume_inbound=True))


_REDUCTIONS = {
    None: "update",
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, values: relax.Expr, reduction: str | None
) -> relax.Expr:
    if no_elements(indices):
        return x
    shape = list(indices.struct_info.shape)
    if not b.has_shape(values, shape):
        values = _first_values(b, values, shape)
    dim %= x.struct_info.ndim
    indices = inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    return _scatter(b, x, indices, values, dim, _REDUCTIONS[reduction])


def scatter(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr, reduce: str | None = None
) -> relax.Expr:
    """``x`` with ``source`` written at ``indices`` along ``dim``."""
    return _scattered(b, x, dim, indices, b.cast(source, b.dtype), reduce)


def scatter_value(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, value: Any, reduce: str | None = None
) -> relax.Expr:
    """``x`` with one ``value`` written at ``indices`` along ``dim``."""
    shape = list(indices.struct_info.shape)
    return _scattered(b, x, dim, indices, b.emit(op.full(shape, b.tensor(value, b.dtype), b.dtype)), reduce)


def scatter_add(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr) -> relax.Expr:
    """``x`` with ``source`` added at ``indices`` along ``dim``."""
    return _scattered(b, x, dim, indices, source, "add")


def scatter_reduce(
    b: Emitter,
    x: relax.Expr,
    dim: int,
    indices: relax.Expr,
    source: relax.Expr,
    reduce: str,
    include_self: bool = True,
) -> relax.Expr:
    """``x`` reduced with ``source`` at ``indices`` along ``dim``."""
    shape = list(indices.struct_info.shape)
    if not include_self:
        identity = _identity("sum" if reduce == "mean" else reduce, b.dtype)
        start = b.emit(op.full(shape, b.tensor(identity, b.dtype), b.dtype))
        x = b.emit(_scattered(b, x, dim, indices, start, None))
    if reduce != "mean":
        return _scattered(b, x, dim, indices, source, reduce)
    total = b.emit(_scattered(b, x, dim, indices, source, "sum"))
    zero, one = (b.tensor(number, "int64") for number in (0, 1))
    counts = b.emit(op.full(x.struct_info.shape, one if include_self else zero, "int64"))
    counts = b.emit(_scattered(b, counts, dim, indices, b.emit(op.full(shape, one, "int64")), "sum"))
    counts = b.emit(op.maximum(counts, one))
    if "float" in b.dtype:
        total = b.wide(total)
        return op.divide(total, b.cast(counts, total.struct_info.dtype))
    return op.floor_divide(total, b.cast(counts, b.dtype))


def _identity(reduction: str, dtype: str) -> Any:
    """What leaves a value as it is in a reduction with it."""
    if reduction in ("sum", "prod"):
        return 0 if reduction == "sum" else 1
    if dtype == "bool":
        return reduction == "amin"
    if "float" in dtype:
        return math.inf if reduction == "amin" else -math.inf
    limits = torch.iinfo(getattr(torch, dtype))
    return limits.max if reduction == "amin" else limits.min


def index_add(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr, alpha: Any = 1
) -> relax.Expr:
    """``x`` with ``alpha * source`` added at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    indices = inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    if alpha != 1:
        dtype = "int8" if b.dtype == "bool" else b.dtype
        source = b.cast(b.emit(op.multiply(b.cast(source, dtype), b.tensor(alpha, dtype))), b.dtype)
    return _slices_written(b, x, dim, indices, source, "add")


CONVERTERS: dict[str, Converter] = {
    "aten.index_put.default": index_put,
    "aten.scatter.src": as_vectors(scatter),
    "aten.scatter.reduce": as_vectors(scatter),
    "aten.scatter.value": as_vectors(scatter_value),
    "aten.scatter.value_reduce": as_vectors(scatter_value),
    "aten.scatter_add.default": as_vectors(scatter_add),
    "aten.scatter_reduce.two": as_vectors(scatter_reduce),
    "aten.index_add.default": as_vectors(index_add),
    "aten.index_copy.default": as_vectors(index_copy),
}
