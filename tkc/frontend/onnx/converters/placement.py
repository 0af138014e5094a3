"""Operators that say for each element of the result where it comes from: bits, positions, windows of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from tvm import DataType, relax, te, tirx

from tkc.frontend.onnx.converters.shared import Converted, Converter, is_number, normalized_axis, scalar
from tkc.frontend.onnx.graph import ConversionError, Node
from tkc.frontend.onnx.signature import DTYPES
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.pixels import bounded, extents, read_within


def _bit_cast(node: Node) -> Converted:
    """The same bits as another type of the same width."""
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to")))
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
    if targets is None:
        raise ConversionError("needs its shape to be a constant; make it an initializer, or have it folded")
    rank = node.rank(0)
    axes = [normalized_axis(axis, rank) for axis in node.attribute("axes", range(rank))]
    data, pads = node.tensor(0), [0] * 2 * rank
    for axis, target in zip(axes, targets, strict=True):
        size = node.shape(0)[axis]
        if not (isinstance(size, int) and isinstance(target, int)):
            if is_number(node.algebra.simplify(size - target), 0):
                continue
            raise ConversionError("crops or pads an axis of symbolic size; export the model with fixed sizes there")
        if size > target:
            start = (size - target) // 2
            data = node.emit(relax.op.strided_slice(data, [axis], [start], [start + target], assume_inbound=True))
        else:
            before = (target - size) // 2
            pads[2 * axis : 2 * axis + 2] = [before, target - size - before]
    return relax.op.nn.pad(data, pads) if any(pads) else data


def _affine_grid(node: Node) -> Converted:
    """The points that an affine map sends the pixels of an image of a given size to."""
    sizes = node.sizes(1)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        raise ConversionError("needs its size to be a constant; make it an initializer, or have it folded")
    dtype, spatial = node.dtype(0), [int(size) for size in sizes[2:]]
    steps = [_points(size, bool(node.attribute("align_corners", 0))) for size in spatial]
    points = np.stack([*reversed(np.meshgrid(*steps, indexing="ij")), np.ones(spatial)], -1)
    flat = points.reshape(-1, len(spatial) + 1).astype(dtype)
    grid = node.emit(
        relax.op.matmul(relax.const(flat, dtype), node.emit(relax.op.permute_dims(node.tensor(0), [0, 2, 1])))
    )
    batch: list[Size] = [node.shape(0)[0]]
    return relax.op.reshape(grid, [*batch, *spatial, len(spatial)])


def _points(size: int, aligned: bool) -> np.ndarray:
    """The pixels of an axis from -1 to 1: their centers, or, if ``aligned``, the first and last one at the ends."""
    if aligned:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
    return (2 * np.arange(size) + 1) / size - 1


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
