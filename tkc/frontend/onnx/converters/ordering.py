"""Operators that sort, and that look for the largest or smallest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx, topi

from tkc.frontend.onnx.converters.reductions import Reduction
from tkc.frontend.onnx.converters.run_time_shapes import window
from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    at_run_time,
    normalized_axis,
    scalar,
    size_scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError, shape_of

_FIRST_OPSET_OF_ONE_AXIS = 13

# What TVM sorts the other types as.
_SORTED_AS = {
    **dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}


def _top_k(node: Node) -> Converted:
    count = [node.attribute("k")] if "k" in node.attributes else node.sizes(1)
    axis, largest = normalized_axis(node.attribute("axis", -1), node.rank(0)), bool(node.attribute("largest", 1))
    dtype = node.dtype(0)
    inner = _SORTED_AS.get(dtype, dtype)
    data = node.emit(relax.op.astype(_without_top_bit(node.tensor(0)), inner)) if inner != dtype else node.tensor(0)
    fixed = count[0] if count is not None and isinstance(count[0], int) else None
    if fixed is not None:
        node.require_at_least(node.shape(0)[axis], fixed)
    elif count is not None:
        node.require_at_most(count[0], node.shape(0)[axis])
    # Of a number that only the running model knows, all are sorted.
    found = node.emit(relax.op.topk(data, -1 if fixed is None else fixed, axis, "both", largest, "int64"))
    values, indices = (node.emit(relax.TupleGetItem(found, i)) for i in range(2))
    if fixed is None:
        values, indices = _first(node, (values, indices), axis, count)
    return _without_top_bit(node.emit(relax.op.astype(values, dtype))) if inner != dtype else values, indices


def _first(node: Node, sorted_: Sequence[relax.Expr], axis: int, count: Sequence[Size] | None) -> list[relax.Expr]:
    """As many of the first elements along an axis as the node's second input says; a call fails for more."""
    shape = node.shape(0)
    size: Size
    if count is None:
        given = node.emit(relax.op.astype(relax.op.reshape(node.tensor(1), [1]), "int64"))
        length = size_vector(node, [shape[axis]])
        (size,) = node.run_time_sizes(given, 1, node.emit(relax.op.less_equal(_scalar(given), _scalar(length))))
    else:
        size = count[0]
    begins = relax.const(np.zeros(len(shape), "int64"), "int64")
    sizes = [size if i == axis else other for i, other in enumerate(shape)]
    return [window(node, tensor, begins, sizes) for tensor in sorted_]


def _scalar(vector: relax.Expr) -> relax.Expr:
    """A vector of one element without dimensions."""
    return relax.op.reshape(vector, ())


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
        node.require_at_least(node.shape(0)[axis], 1)
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
    batch, spatial, _ = node.shape(0)
    node.require_shape(0, [batch, spatial, 4])
    node.require_shape(1, [batch, node.shape(1)[1], spatial])
    most = _number(node, 2, 0)
    limit = int(_most_boxes(node) if most is None else most)
    boxes = _corners(node) if node.attribute("center_point_box", 0) else node.tensor(0)
    operands = (boxes, _places(node, _score_threshold(node)), limit, _overlap(node))

    def compute(boxes: te.Tensor, places: te.Tensor, limit: int, overlap: te.Tensor) -> list[te.Tensor]:
        # Relax's operator states that as many boxes are chosen as can be.
        chosen: list[te.Tensor] = topi.vision.all_class_non_max_suppression(
            boxes, places, limit, overlap, tirx.const(0.0, "float32"), "onnx"
        )
        return chosen

    results = node.builder.emit_te(compute, *operands, primfunc_name_hint="suppress")
    chosen, count = (node.emit(relax.TupleGetItem(results, i)) for i in range(2))
    (total,) = node.run_time_sizes(node.emit(relax.op.astype(count, "int64")), 1)
    found = window(node, chosen, relax.const(np.zeros(2, "int64"), "int64"), [total, 3])
    return [found if most is not None else _best_of_each_class(node, found, total)]


def _most_boxes(node: Node) -> int:
    count = node.shape(1)[-1]
    if not isinstance(count, int):
        raise ConversionError(
            "needs its maximum count to be a constant, or the number of boxes to be fixed; make the former an "
            "initializer, or export the model with fixed sizes"
        )
    return count


def _overlap(node: Node) -> relax.Expr:
    """From which overlap on TVM drops a box: the next number after the threshold, which ONNX's boxes must exceed."""
    given = _number(node, 3, 0.0)
    if given is not None:
        return scalar(float(np.nextafter(np.float32(given), np.float32(np.inf))), "float32")

    def compute(threshold: te.Tensor) -> te.Tensor:
        def element() -> tirx.PrimExpr:
            # Of numbers from 0 on the next one has the next bits; an overlap is never below 0.
            bits = tirx.reinterpret("int32", tirx.max(threshold(), tirx.const(0, "float32")))
            positive = tirx.reinterpret("float32", bits + tirx.const(1, "int32"))
            return tirx.Select(threshold() < tirx.const(0, "float32"), tirx.const(0, "float32"), positive)

        return te.compute((), element, name="beyond")

    return node.builder.emit_te(compute, node.emit(_scalar(node.tensor(3))), primfunc_name_hint="next_number")


def _score_threshold(node: Node) -> relax.Expr | None:
    given = _number(node, 4, -np.inf)
    if not node.has(4):
        return None
    if given is None:
        return node.emit(_scalar(node.tensor(4)))
    if np.isnan(given):
        raise ConversionError("has a score threshold that is no number; correct the model")
    return scalar(given, "float32")


def _best_of_each_class(node: Node, boxes: relax.Expr, total: tirx.Var) -> relax.Expr:
    """As many of the boxes of each class, the best come first, as the node's third input says."""
    op, emit = relax.op, node.emit
    most = emit(op.astype(_scalar(node.tensor(2)), "int64"))

    def compute(boxes: te.Tensor, most: te.Tensor) -> te.Tensor:
        def element(row: tirx.Var) -> tirx.PrimExpr:
            # One more than the most is in a class of which as many stand before.
            other = tirx.max(row - most(), tirx.const(0, "int64"))
            same = tirx.all(row >= most(), *(tirx.EQ(boxes(row, i), boxes(other, i)) for i in range(2)))
            return tirx.Select(tirx.any(same, most() <= 0), tirx.const(0, "int64"), tirx.const(1, "int64"))

        return te.compute((boxes.shape[0],), element, name="kept")

    kept = node.builder.emit_te(compute, boxes, most, primfunc_name_hint="kept_boxes")
    # Those that are kept come first, in their order. A sum over no boxes at all has one that does not count.
    counted = emit(op.concat([kept, relax.const(np.zeros(1, "int64"), "int64")], 0))
    (count,) = node.run_time_sizes(emit(op.sum(counted, [0], True)), 1)
    behind = emit(op.multiply(op.subtract(scalar(1, "int64"), kept), size_scalar(node, total, "int64")))
    places = emit(op.add(op.arange(0, total, 1, "int64"), behind))
    order = emit(op.argsort(places, 0, dtype="int64"))
    first = window(node, order, relax.const(np.zeros(1, "int64"), "int64"), [count])
    return emit(op.take(boxes, first, 0, mode="clip"))


def _places(node: Node, threshold: relax.Expr | None) -> relax.Expr:
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
    above = emit(op.greater(numbers, threshold))
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


def _number(node: Node, position: int, default: float) -> float | None:
    """An input of one number, or its default; ``None`` where only the running model has it."""
    if at_run_time(node, position):
        return None
    given = node.constant(position, "its numbers")
    return default if given is None else given.item()


CONVERTERS: dict[str, Converter] = {
    "ArgMax": _position_of(relax.op.max),
    "ArgMin": _position_of(relax.op.min),
    "Hardmax": _hardmax,
    "NonMaxSuppression": _non_max_suppression,
    "TopK": _top_k,
}
