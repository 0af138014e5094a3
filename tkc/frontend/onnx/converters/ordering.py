"""Operators that sort, and that look for the largest or smallest."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.reductions import Reduction
from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    normalized_axis,
    scalar,
    size_scalar,
)
from tkc.frontend.onnx.graph import ConversionError, Node, shape_of

_FIRST_OPSET_OF_ONE_AXIS = 13

# What TVM sorts the other types as.
_SORTED_AS = {
    **dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}


def _top_k(node: Node) -> Converted:
    count = [node.attribute("k")] if "k" in node.attributes else node.sizes(1)
    if count is None or not isinstance(count[0], int):
        raise ConversionError(
            "needs its k to be a constant; make it an initializer, or have the exporter fold constants"
        )
    axis, largest = normalized_axis(node.attribute("axis", -1), node.rank(0)), bool(node.attribute("largest", 1))
    dtype = node.dtype(0)
    inner = _SORTED_AS.get(dtype, dtype)
    data = node.emit(relax.op.astype(_without_top_bit(node.tensor(0)), inner)) if inner != dtype else node.tensor(0)
    found = node.emit(relax.op.topk(data, count[0], axis, "both", largest, "int64"))
    values, indices = (node.emit(relax.TupleGetItem(found, i)) for i in range(2))
    return _without_top_bit(node.emit(relax.op.astype(values, dtype))) if inner != dtype else values, indices


def _without_top_bit(data: relax.Expr) -> relax.Expr:
    """Numbers of 64 bits without sign, moved to where the signed ones lie in the same order, and back."""
    if data.struct_info.dtype != "uint64":
        return data
    return relax.op.bitwise_xor(data, relax.op.left_shift(scalar(1, "uint64"), scalar(63, "uint64")))


def _position_of(reduction: Reduction) -> Converter:
    """A converter of ArgMax or ArgMin, by comparison with what ``reduction`` finds; NaN counts as found.

    TVM's own have no ``select_last_index``.
    """

    def convert(node: Node) -> Converted:
        axis, keep = normalized_axis(node.attribute("axis", 0), node.rank(0)), bool(node.attribute("keepdims", 1))
        last = bool(node.attribute("select_last_index", 0))
        return _first_or_last(node, node.tensor(0), axis, reduction, keep, last)

    return convert


def _first_or_last(
    node: Node, data: relax.Expr, axis: int, reduction: Reduction, keep: bool, last: bool = False
) -> relax.Expr:
    shape, dtype = shape_of(data, node.algebra), data.struct_info.dtype
    size = shape[axis]
    hit = relax.op.equal(data, node.emit(reduction(data, [axis], True)))
    if "float" in dtype:
        wide = data if dtype in EXACT else node.emit(relax.op.astype(data, "float32"))
        hit = relax.op.logical_or(hit, relax.op.isnan(wide))
    positions = node.emit(relax.op.arange(0, size, 1, "int64"))
    positions = relax.op.reshape(positions, [size if i == axis else 1 for i in range(len(shape))])
    if last:
        return relax.op.max(relax.op.where(hit, positions, scalar(0, "int64")), axis, keep)
    end = size_scalar(node, node.algebra.simplify(size - 1), "int64")
    return relax.op.min(relax.op.where(hit, positions, end), axis, keep)


def _hardmax(node: Node) -> Converted:
    """1 at the first of the largest, 0 elsewhere; before opset 13, over all axes from the given one on."""
    data, shape = node.tensor(0), node.shape(0)
    if node.opset >= _FIRST_OPSET_OF_ONE_AXIS:
        axis = normalized_axis(node.attribute("axis", -1), len(shape))
    else:
        first = normalized_axis(node.attribute("axis", 1), len(shape))
        halves = [node.algebra.product(shape[:first]), node.algebra.product(shape[first:])]
        data, axis = node.emit(relax.op.reshape(data, halves)), 1
    size = shape_of(data, node.algebra)[axis]
    chosen = node.emit(_first_or_last(node, data, axis, relax.op.max, keep=True))
    positions = node.emit(relax.op.arange(0, size, 1, "int64"))
    positions = relax.op.reshape(positions, [size if i == axis else 1 for i in range(data.struct_info.ndim)])
    hits = node.emit(relax.op.astype(relax.op.equal(positions, chosen), node.dtype(0)))
    return relax.op.reshape(hits, shape)


def _non_max_suppression(node: Node) -> Converted:
    """The best boxes of each class, without those that overlap a better one."""
    most, overlap, score = (
        _number(node, position, what, default)
        for position, what, default in (
            (2, "its maximum count", 0),
            (3, "its IoU threshold", 0.0),
            (4, "its score threshold", -np.inf),
        )
    )
    if np.isnan(score):
        raise ConversionError("has a score threshold that is no number; correct the model")
    # TVM drops a box whose overlap reaches the threshold, ONNX one whose overlap exceeds it.
    above = float(np.nextafter(np.float32(overlap), np.float32(np.inf)))
    chosen = relax.op.vision.all_class_non_max_suppression(
        _corners(node) if node.attribute("center_point_box", 0) else node.tensor(0),
        _places(node, score if node.has(4) else None),
        scalar(int(most), "int64"),
        scalar(above, "float32"),
        scalar(0.0, "float32"),
        output_format="onnx",
    )
    return [relax.TupleGetItem(node.emit(chosen), 0)]


def _places(node: Node, threshold: float | None) -> relax.Expr:
    """For each box of a class its place among the scores, the lowest 1, or 0 where its score is not above a threshold.

    TVM takes boxes of scores up to 0 for such that were dropped before. NaN is above no threshold, and comes last.
    """
    op, emit, scores = relax.op, node.emit, node.tensor(1)
    lowest = scalar(-np.inf, "float32")
    numbers = emit(op.where(op.isnan(scores), lowest, scores))
    order = emit(op.argsort(numbers, -1, descending=True, dtype="int32"))
    place = emit(op.astype(op.argsort(order, -1, descending=False, dtype="int32"), "float32"))
    count = emit(op.astype(size_scalar(node, node.shape(1)[-1], "int64"), "float32"))
    places = emit(op.subtract(count, place))
    if threshold is None:
        return places
    above = emit(op.greater(numbers, scalar(threshold, "float32")))
    return emit(op.where(above, places, scalar(0.0, "float32")))


def _corners(node: Node) -> relax.Expr:
    """Boxes of (x, y) of the center, width and height as (y, x) of two opposite corners."""
    parts = node.emit(relax.op.split(node.tensor(0), 4, 2))
    x, y, width, height = (node.emit(relax.TupleGetItem(parts, i)) for i in range(4))
    half = scalar(0.5, node.dtype(0))
    right, up = node.emit(relax.op.multiply(width, half)), node.emit(relax.op.multiply(height, half))
    sides = (
        relax.op.subtract(y, up),
        relax.op.subtract(x, right),
        relax.op.add(y, up),
        relax.op.add(x, right),
    )
    return node.emit(relax.op.concat([node.emit(side) for side in sides], 2))


def _number(node: Node, position: int, what: str, default: float) -> float:
    given = node.constant(position, what)
    return default if given is None else given.item()


CONVERTERS: dict[str, Converter] = {
    "ArgMax": _position_of(relax.op.max),
    "ArgMin": _position_of(relax.op.min),
    "Hardmax": _hardmax,
    "NonMaxSuppression": _non_max_suppression,
    "TopK": _top_k,
}
