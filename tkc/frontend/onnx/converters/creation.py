"""Operators that make tensors out of numbers and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    counted_from_front,
    fixed_length,
    normalized_axis,
    scalar,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import WIDENED
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.untrusted import MOST_ELEMENTS
from tkc.frontend.onnx.values import ConversionError

# TVM counts them out while it compiles.
MOST_CLASSES = 1 << 24


def _constant_of_shape(node: Node) -> Converted:
    value = node.attribute("value")
    fill = np.zeros(1, "float32") if value is None else onnx.numpy_helper.to_array(value)
    sizes: Sequence[Size] | None = node.sizes(0)
    if sizes is None:
        sizes = node.run_time_sizes(node.tensor(0), fixed_length(node, 0))
    dtype = WIDENED.get(str(fill.dtype), str(fill.dtype))
    return relax.op.full(list(sizes), relax.const(fill.astype(dtype).reshape(()), dtype), dtype)


def _eye_like(node: Node) -> Converted:
    data_type = node.attribute("dtype")
    dtype = node.dtype(0) if data_type is None else str(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    dtype = WIDENED.get(dtype, dtype)
    rows, columns = node.shape(0)
    return relax.op.eye(rows, columns, node.attribute("k", 0), dtype)


def _range(node: Node) -> Converted:
    bounds = [bound[0] for bound in (node.sizes(i) for i in range(3)) if bound is not None]
    dtype = node.dtype(0)
    if len(bounds) == 3 and dtype in ("int32", "int64"):
        if all(isinstance(bound, int) for bound in bounds):
            _check_count(*bounds)
        return relax.op.arange(*bounds, dtype)
    if len(bounds) == 3 and all(isinstance(bound, int | float) for bound in bounds):
        _check_count(*(float(bound) for bound in bounds))
    start, limit, delta = (node.emit(relax.op.astype(node.tensor(i), "float64")) for i in range(3))
    count = node.emit(relax.op.ceil(relax.op.divide(relax.op.subtract(limit, start), delta)))
    count = relax.op.astype(relax.op.maximum(count, scalar(0.0, "float64")), "int64")
    (size,) = node.run_time_sizes(node.emit(relax.op.reshape(count, (1,))), 1)
    steps = relax.op.astype(relax.op.arange(0, size, 1, "int64"), dtype)
    return relax.op.add(node.tensor(0), relax.op.multiply(steps, node.tensor(2)))


def _check_count(start: float, limit: float, delta: float) -> None:
    """Raise :class:`ConversionError` where a range has no end, or too many numbers."""
    if not delta or not (limit - start) / delta <= MOST_ELEMENTS:
        raise ConversionError(f"counts from {start} to {limit} by {delta}, which no tensor can hold; correct the model")


def _one_hot(node: Node) -> Converted:
    depth = node.sizes(1)
    if depth is None:
        given = node.emit(relax.op.astype(relax.op.reshape(node.tensor(1), [1]), "int64"))
        depth = list(node.run_time_sizes(given, 1))
    node.require_shape(2, [2])
    rank = node.rank(0)
    axis = normalized_axis(node.attribute("axis", -1), rank + 1)
    size = int(depth[0]) if isinstance(depth[0], int | float) else depth[0]
    if isinstance(size, int) and not 0 < size <= MOST_CLASSES:
        raise ConversionError(f"has depth {size}; expected 1 to {MOST_CLASSES}")
    indices = counted_from_front(node, node.emit(relax.op.astype(node.tensor(0), "int64")), size)
    classes = node.emit(relax.op.arange(0, size, 1, "int64"))
    classes = node.emit(relax.op.reshape(classes, [size if i == axis else 1 for i in range(rank + 1)]))
    hit = node.emit(relax.op.equal(relax.op.expand_dims(indices, axis), classes))
    off, on = (
        node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(node.tensor(2), [0], [i], [i + 1])), [0]))
        for i in range(2)
    )
    return relax.op.where(hit, on, off)


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
    "Range": _range,
}
