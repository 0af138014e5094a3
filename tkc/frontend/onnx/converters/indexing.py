"""Operators that read and write elements of a tensor by their indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.run_time_shapes import as_int64
from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    at_run_time,
    is_number,
    normalized_axis,
    scalar,
    size_scalar,
    size_vector,
    with_inputs,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import extents, read_within


@dataclass(frozen=True)
class Indices:
    """Indices counted from the front and brought into range, and which of them were in range (None: all are)."""

    tensor: relax.Expr
    inside: relax.Expr | None


def bounded_indices(node: Node, position: int, sizes: Sequence[Size]) -> Indices:
    """An input's indices into axes of these sizes: one axis, or one for each element of the last dimension.

    Indices that are constants are checked here; :mod:`tkc.frontend.indices` says when those of the running model are.
    They are brought into range, so that nothing outside of a tensor is read or written.
    """
    value = node.value(position)
    known = None if value is None or value.known is None or value.known.symbolic else value.known.values
    if known is not None and all(isinstance(size, int) for size in sizes):
        return Indices(_checked(known, sizes), None)
    indices, dtype = node.tensor(position), node.dtype(position)
    _note(node, indices, sizes)
    length = size_scalar(node, sizes[0], dtype) if len(sizes) == 1 else size_vector(node, sizes)
    if length.struct_info.dtype != dtype:
        length = node.emit(relax.op.astype(length, dtype))
    zero = scalar(0, dtype)
    indices = node.emit(relax.op.where(relax.op.less(indices, zero), relax.op.add(indices, length), indices))
    inside = relax.op.logical_and(relax.op.greater_equal(indices, zero), relax.op.less(indices, length))
    last = relax.op.subtract(length, scalar(1, dtype))
    return Indices(node.emit(relax.op.minimum(relax.op.maximum(indices, zero), last)), node.emit(inside))


def _note(node: Node, indices: relax.Expr, sizes: Sequence[Size]) -> None:
    """Have the indices checked: as a whole where all axes are of one size, else those of each axis by themselves."""
    if all(_same(node, size, sizes[0]) for size in sizes[1:]):
        node.note_indices(indices, sizes[0])
        return
    for axis, size in enumerate(sizes):
        node.note_indices(indices, size, axis)


def _same(node: Node, left: Size, right: Size) -> bool:
    return is_number(node.algebra.simplify(left - right), 0)


def _checked(indices: np.ndarray, sizes: Sequence[Size]) -> relax.Expr:
    # Of one axis the size is a number: an array of one would give an index without dimensions an axis.
    limits = np.int64(sizes[0]) if len(sizes) == 1 else np.array(sizes, "int64")
    outside = (indices < -limits) | (indices >= limits)
    if outside.any():
        raise ConversionError(
            f"has index {indices[outside][0]} for an axis of size {', '.join(map(str, sizes))}; correct the model"
        )
    counted = np.where(indices < 0, indices + limits, indices).astype(indices.dtype)
    return relax.const(counted, str(indices.dtype))


def _or_nan(node: Node, result: relax.Expr, inside: relax.Expr | None) -> relax.Expr:
    """What was read, but NaN where the index was out of range, so that the mistake shows, for types that have NaN."""
    dtype = node.dtype(0)
    if inside is None or "float" not in dtype or dtype.startswith("float8"):
        return result
    return relax.op.where(inside, node.emit(result), scalar(np.nan, dtype))


def _gather(node: Node) -> Converted:
    axis = normalized_axis(node.attribute("axis", 0), node.rank(0))
    indices = bounded_indices(node, 1, [node.shape(0)[axis]])
    result = relax.op.take(node.tensor(0), indices.tensor, axis, mode="clip")
    inside, behind = indices.inside, node.rank(0) - axis - 1
    if inside is not None and behind:
        inside = node.emit(relax.op.reshape(inside, [*node.shape(1), *[1] * behind]))
    return _or_nan(node, result, inside)


def _gather_elements(node: Node) -> Converted:
    axis = normalized_axis(node.attribute("axis", 0), node.rank(0))
    _fit_elements(node, axis)
    indices = bounded_indices(node, 1, [node.shape(0)[axis]])
    return _or_nan(node, relax.op.gather_elements(node.tensor(0), indices.tensor, axis), indices.inside)


def _fit_elements(node: Node, axis: int) -> None:
    """See to it that there are rows of the data for all rows of indices, input 1."""
    if node.rank(1) != node.rank(0):
        raise ConversionError("has indices of another number of dimensions than its data; correct the model")
    for i, (rows, limit) in enumerate(zip(node.shape(1), node.shape(0), strict=True)):
        if i != axis:
            node.require_at_most(rows, limit)


def _gather_nd(node: Node) -> Converted:
    batch = node.attribute("batch_dims", 0)
    depth = _depth(node)
    for size, other in zip(node.shape(0)[:batch], node.shape(1)[:batch], strict=True):
        node.require_equal(size, other)
    indices = bounded_indices(node, 1, node.shape(0)[batch : batch + depth])
    result = relax.op.gather_nd(node.tensor(0), indices.tensor, batch)
    inside = indices.inside
    if inside is not None:
        inside = relax.op.min(relax.op.astype(inside, "int8"), -1)
        kept = [1] * (node.rank(0) - batch - depth)
        inside = relax.op.astype(node.emit(relax.op.reshape(inside, [*node.shape(1)[:-1], *kept])), "bool")
    return _or_nan(node, result, inside)


def _depth(node: Node) -> int:
    """How many axes each index of GatherND or ScatterND goes into."""
    depth = node.shape(1)[-1]
    if not isinstance(depth, int):
        raise ConversionError(
            "needs the last dimension of its indices to be fixed; export the model with fixed sizes there"
        )
    return depth


def _scatter_elements(node: Node) -> Converted:
    axis = normalized_axis(node.attribute("axis", 0), node.rank(0))
    _fit_elements(node, axis)
    node.require_shape(2, node.shape(1))
    indices = bounded_indices(node, 1, [node.shape(0)[axis]]).tensor
    return with_inputs(node, [node.tensor(0), node.emit(indices), node.tensor(2)]).stock()


def _scatter_nd(node: Node) -> Converted:
    depth = _depth(node)
    behind = node.shape(0)[depth:]
    node.require_shape(2, [*node.shape(1)[:-1], *behind])
    indices = node.emit(bounded_indices(node, 1, node.shape(0)[:depth]).tensor)
    if all(isinstance(size, int | tirx.Var) for size in behind):
        return with_inputs(node, [node.tensor(0), indices, node.tensor(2)]).stock()
    return _rows_scattered(node, indices, depth)


def _rows_scattered(node: Node, indices: relax.Expr, depth: int) -> relax.Expr:
    """ScatterND as ScatterElements of rows, several times slower: TVM's own takes no formulas for the sizes of rows."""
    indexed, behind = node.shape(0)[:depth], node.shape(0)[depth:]
    wide = node.emit(relax.op.astype(indices, "int64"))
    steps = size_vector(node, [node.algebra.product(indexed[axis + 1 :]) for axis in range(depth)])
    places = node.emit(relax.op.sum(node.emit(relax.op.multiply(wide, steps)), -1))
    count = node.algebra.product(node.shape(1)[:-1])
    places = node.emit(relax.op.reshape(places, [count, *[1] * len(behind)]))
    places = node.emit(relax.op.broadcast_to(places, [count, *behind]))
    rows = node.emit(relax.op.reshape(node.tensor(0), [node.algebra.product(indexed), *behind]))
    written = node.emit(relax.op.reshape(node.tensor(2), [count, *behind]))
    reduction = node.attribute("reduction", "none")
    scattered = relax.op.scatter_elements(rows, places, written, 0, "update" if reduction == "none" else reduction)
    return relax.op.reshape(node.emit(scattered), node.shape(0))


def _compress(node: Node) -> Converted:
    axis = node.attributes.get("axis")
    size = node.algebra.product(node.shape(0)) if axis is None else node.shape(0)[normalized_axis(axis, node.rank(0))]
    node.require_at_most(node.shape(1)[0], size)
    return node.stock()


def _max_unpool(node: Node) -> Converted:
    """Each number at its index in a flat tensor of zeros, at the end of which an explicit shape adds more zeros."""
    node.require_shape(1, node.shape(0))
    shape = _pooled_shape(node)
    size = node.algebra.product(shape)
    data = node.emit(relax.op.reshape(node.tensor(0), [-1]))
    indices = node.emit(relax.op.reshape(node.emit(bounded_indices(node, 1, [size]).tensor), [-1]))
    zeros = node.emit(relax.op.zeros([size], node.dtype(0)))
    result = node.emit(relax.op.reshape(node.emit(relax.op.scatter_elements(zeros, indices, data, 0)), shape))
    if at_run_time(node, 2):
        return _with_zeros_behind(node, node.emit(result), shape)
    given = node.constant(2, "its output shape")
    if given is None:
        return result
    missing = [node.algebra.simplify(new - old) for new, old in zip(given.tolist(), shape, strict=True)]
    if not all(isinstance(width, int) and width >= 0 for width in missing):
        raise ConversionError(f"makes shape {given.tolist()} of {shape}, which does not fit; correct the model")
    return relax.op.nn.pad(result, [n for width in missing for n in (0, width)])


def _with_zeros_behind(node: Node, result: relax.Expr, shape: list[Size]) -> relax.Expr:
    """The tensor with zeros behind it along each axis, as many as the computed shape of input 2 has more."""
    wanted = as_int64(node, 2)
    fits = node.emit(relax.op.min(relax.op.subtract(wanted, size_vector(node, shape))))
    sizes = node.run_time_sizes(wanted, len(shape), relax.op.greater_equal(fits, scalar(0, "int64")))

    def compute(data: te.Tensor, sizes: list[Size]) -> te.Tensor:
        zero = tirx.const(0, data.dtype)
        limits = extents(data.shape)
        return te.compute(
            extents(sizes), lambda *index: read_within(lambda at: data(*at), index, limits, zero), name="unpooled"
        )

    return node.builder.emit_te(compute, result, list(sizes), primfunc_name_hint="max_unpool")


def _pooled_shape(node: Node) -> list[Size]:
    """The shape that was pooled, as far as the attributes tell."""
    shape, kernel = node.shape(0), node.attribute("kernel_shape")
    rank = len(kernel)
    strides, pads = node.attribute("strides", [1] * rank), node.attribute("pads", [0] * 2 * rank)
    spatial = [
        node.algebra.simplify((size - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i])
        for i, size in enumerate(shape[2:])
    ]
    return [*shape[:2], *spatial]


def trilu(node: Node) -> Converted:
    """The triangle of the last two axes above or below a diagonal; zeros elsewhere."""
    offset = node.sizes(1) or [0]
    upper = bool(node.attribute("upper", 1))
    if node.has(1) and node.sizes(1) is None:
        return _trilu_at_run_time(node, upper)
    if not isinstance(offset[0], int):
        raise ConversionError(
            "needs its diagonal to be a constant; make it an initializer, or have the exporter fold constants"
        )
    return (relax.op.triu if upper else relax.op.tril)(node.tensor(0), offset[0])


def _trilu_at_run_time(node: Node, upper: bool) -> Converted:
    rows, columns = node.shape(0)[-2:]
    row = node.emit(relax.op.reshape(node.emit(relax.op.arange(0, rows, 1, "int64")), [rows, 1]))
    column = node.emit(relax.op.arange(0, columns, 1, "int64"))
    distance = relax.op.subtract(relax.op.subtract(column, row), node.tensor(1))
    keep = (relax.op.greater_equal if upper else relax.op.less_equal)(distance, scalar(0, "int64"))
    return relax.op.where(keep, node.tensor(0), scalar(0, node.dtype(0)))


CONVERTERS: dict[str, Converter] = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "MaxUnpool": _max_unpool,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Trilu": trilu,
}
