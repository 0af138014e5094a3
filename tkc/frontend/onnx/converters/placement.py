"""Operators that say for each element of the result where it comes from: bits, positions, windows of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from tvm import DataType, relax, te, tirx

from tkc.frontend.onnx.converters.run_time_shapes import center_cropped
from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    at_run_time,
    fixed_length,
    normalized_axis,
    scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import bounded, extents, read_within


def _bit_cast(node: Node) -> Converted:
    """The same bits as another type of the same width."""
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to")))
    narrow = node.declared_dtype(0)
    if narrow in WIDENED or dtype in WIDENED:
        raise ConversionError(f"takes the bits of {narrow} for {dtype}, which models hold in a byte or more; use Cast")
    if node.dtype(0) == "bool" and dtype in ("int8", "uint8"):  # which holds 0 or 1
        return relax.op.astype(node.tensor(0), dtype)
    if dtype not in DTYPES or "bool" in (dtype, node.dtype(0)) or DataType(dtype).bits != DataType(node.dtype(0)).bits:
        raise ConversionError(f"takes the bits of {node.dtype(0)} for {dtype}; cast between types of the same width")
    if dtype == node.dtype(0):
        return node.tensor(0)

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *index: tirx.reinterpret(dtype, data(*index)), name="bits")

    return node.builder.emit_te(compute, node.tensor(0), primfunc_name_hint="bit_cast")


def _reverse_sequence(node: Node) -> Converted:
    """Each sequence of a batch with its first elements, as many as its length, in reverse order."""
    batch, time = (normalized_axis(node.attribute(f"{name}_axis", i), 2) for i, name in ((1, "batch"), (0, "time")))

    node.require_shape(1, [node.shape(0)[batch]])
    node.note_count(node.tensor(1), node.shape(0)[time])

    def compute(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            place = list(index)
            length = lengths(index[batch]).astype("int64")
            mirrored = bounded(length - 1 - index[time], data.shape[time])
            place[time] = tirx.Select(index[time] < length, mirrored, index[time])
            return data(*place)

        return te.compute(data.shape, element, name="reversed")

    return node.builder.emit_te(compute, node.tensor(0), node.tensor(1), primfunc_name_hint="reverse_sequence")


def _tensor_scatter(node: Node) -> Converted:
    """A cache with an update in place of what begins at an index of each batch; a circular one goes on at its start."""
    rank = node.rank(0)
    axis = normalized_axis(node.attribute("axis", -2), rank)
    circular = node.attribute("mode", "linear") == "circular"
    length = node.shape(1)[axis]
    node.require_shape(1, [length if i == axis else size for i, size in enumerate(node.shape(0))])
    if node.has(2):
        node.require_shape(2, [node.shape(0)[0]])
    if node.has(2) and not circular:
        node.note_count(node.tensor(2), node.algebra.simplify(node.shape(0)[axis] - length))

    def compute(cache: te.Tensor, update: te.Tensor, *first: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            offset = index[axis]
            if first:
                offset = offset - first[0](index[0]).astype("int64")
            if circular:
                offset = tirx.floormod(offset, cache.shape[axis])

            def read(position: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
                return update(*index[:axis], position[0], *index[axis + 1 :])

            return read_within(read, [offset], extents([update.shape[axis]]), cache(*index))

        return te.compute(cache.shape, element, name="scattered")

    operands = [node.tensor(i) for i in range(3) if node.has(i)]
    return node.builder.emit_te(compute, *operands, primfunc_name_hint="tensor_scatter")


def _center_crop_pad(node: Node) -> Converted:
    """The middle of axes that are too long, and axes that are too short in the middle of zeros."""
    targets = node.sizes(1)
    rank = node.rank(0)
    axes = [normalized_axis(axis, rank) for axis in node.attribute("axes", range(rank))]
    data, pads = node.tensor(0), [0] * 2 * rank
    if targets is None or not all(isinstance(size, int) for size in (*targets, *(node.shape(0)[a] for a in axes))):
        return center_cropped(node, axes)
    for axis, target in zip(axes, targets, strict=True):
        size = node.shape(0)[axis]
        if size > target:
            start = (size - target) // 2
            data = node.emit(relax.op.strided_slice(data, [axis], [start], [start + target], assume_inbound=True))
        else:
            before = (target - size) // 2
            pads[2 * axis : 2 * axis + 2] = [before, target - size - before]
    return relax.op.nn.pad(data, pads) if any(pads) else data


def _affine_grid(node: Node) -> Converted:
    """The points that an affine map sends the pixels of an image of a given size to."""
    sizes, dtype = node.sizes(1), node.dtype(0)
    if sizes is None:
        count = fixed_length(node, 1)
        given = node.emit(relax.op.astype(node.tensor(1), "int64"))
        batch = relax.op.reshape(size_vector(node, [node.shape(0)[0]]), ())
        first = relax.op.reshape(node.emit(relax.op.strided_slice(given, [0], [0], [1])), ())
        sizes = node.run_time_sizes(given, count, node.emit(relax.op.equal(first, batch)))
    spatial, aligned = list(sizes[2:]), bool(node.attribute("align_corners", 0))
    rank = len(spatial)
    node.require_shape(0, [node.shape(0)[0] if at_run_time(node, 1) else sizes[0], rank, rank + 1])

    def compute(theta: te.Tensor, spatial: Sequence[Size]) -> te.Tensor:
        def element(image: tirx.Var, *index: tirx.Var) -> tirx.PrimExpr:
            total = theta(image, index[-1], rank)
            for axis in range(rank):  # of which the last is x
                place = rank - 1 - axis
                total = total + theta(image, index[-1], axis) * _point(index[place], spatial[place], aligned, dtype)
            return total

        return te.compute(extents([theta.shape[0], *spatial, rank]), element, name="grid")

    return node.builder.emit_te(compute, node.tensor(0), spatial, primfunc_name_hint="affine_grid")


def _point(index: tirx.Var, size: Size, aligned: bool, dtype: str) -> tirx.PrimExpr:
    """A pixel of an axis from -1 to 1: its center, or, if ``aligned``, the first and last one at the ends."""
    one, two = tirx.const(1, "float64"), tirx.const(2, "float64")
    place = index.astype("float64")
    length = tirx.const(size, "float64") if isinstance(size, int) else size.astype("float64")
    if aligned:
        point = tirx.if_then_else(
            length > one, two * place / tirx.max(length - one, one) - one, tirx.const(0, "float64")
        )
    else:
        point = (two * place + one) / length - one
    return point.astype(dtype)


def _array_feature_extractor(node: Node) -> Converted:
    """Elements of the last axis by their positions."""
    flat = node.emit(relax.op.reshape(node.tensor(1), [node.algebra.product(node.shape(1))]))
    size = node.shape(0)[-1]
    node.note_indices(flat, size)
    if node.rank(0) == 1:
        return relax.op.expand_dims(node.emit(relax.op.take(node.tensor(0), flat, 0, mode="clip")), [0])
    return relax.op.take(node.tensor(0), flat, node.rank(0) - 1, mode="clip")


def _binarizer(node: Node) -> Converted:
    """1 above a threshold, else 0."""
    dtype = node.dtype(0)
    above = node.emit(relax.op.greater(node.tensor(0), scalar(node.attribute("threshold", 0.0), dtype)))
    return relax.op.astype(above, dtype)


CONVERTERS: dict[str, Converter] = {
    "AffineGrid": _affine_grid,
    "BitCast": _bit_cast,
    "CenterCropPad": _center_crop_pad,
    "ReverseSequence": _reverse_sequence,
    "TensorScatter": _tensor_scatter,
}
ML_CONVERTERS: dict[str, Converter] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
}
"""Those of ``ai.onnx.ml``."""
