"""Converters for the ONNX operators that Apache TVM's importer lacks, or has with less than the standard asks for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from tvm import relax, tirx

from tkc.frontend.onnx_graph import ConversionError, Node, Value, expression_of, shape_of
from tkc.frontend.onnx_sizes import Known, Size, UndecidedError, pack_sizes

Converted: TypeAlias = relax.Expr | Sequence[relax.Expr] | Known
Converter: TypeAlias = Callable[[Node], Converted]

_EXACT = frozenset({"float32", "float64"})


def _scalar(value: float | bool, dtype: str) -> relax.Constant:
    return relax.const(value, dtype)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ConversionError(f"has axis {axis} for a tensor of {rank} dimensions")
    return axis % rank


# Constants and shapes


def _shape(node: Node) -> Converted:
    """Shape or Size of a tensor whose sizes depend on the data."""
    vector = node.emit(relax.op.shape_to_tensor(node.emit(relax.op.shape_of(node.tensor(0)))))
    if node.proto.op_type == "Size":
        return relax.op.prod(vector)
    rank = node.rank(0)
    start, end, _ = slice(node.attribute("start", 0), node.attribute("end", rank)).indices(rank)
    return relax.op.strided_slice(vector, [0], [start], [max(start, end)])


def _reshape(node: Node) -> Converted:
    target = node.sizes(1) if node.has(1) else list(node.attribute("shape", ()))
    keep_zero = bool(node.attribute("allowzero", 0))
    if target is None:
        return _reshape_at_run_time(node, keep_zero)
    shape = node.shape(0)
    result = [shape[i] if _is(size, 0) and not keep_zero else size for i, size in enumerate(target)]
    if any(_is(size, -1) for size in result):
        open_axis = next(i for i, size in enumerate(result) if _is(size, -1))
        others = node.algebra.product([size for i, size in enumerate(result) if i != open_axis])
        total = node.algebra.product(shape)
        result[open_axis] = _quotient(node, total, others)
    return relax.op.reshape(node.tensor(0), result)


def _quotient(node: Node, total: Size, part: Size) -> Size:
    if _is(part, 0):
        raise ConversionError("reshapes an empty tensor to a size that cannot be told")
    return node.algebra.simplify(total // part)


def _reshape_at_run_time(node: Node, keep_zero: bool) -> Converted:
    """Reshape to sizes that the model computes: 0 keeps the input's size, -1 takes what is left."""
    count, shape, target = _length(node, 1), node.shape(0), node.tensor(1)
    one = _scalar(1, "int64")
    if not keep_zero:
        kept = _vector(node, [*shape, *[1] * count][:count])
        target = node.emit(relax.op.where(relax.op.equal(target, _scalar(0, "int64")), kept, target))
    is_open = node.emit(relax.op.equal(target, _scalar(-1, "int64")))
    others = node.emit(relax.op.prod(relax.op.where(is_open, one, target)))
    rest = relax.op.floor_divide(_vector(node, [node.algebra.product(shape)]), relax.op.maximum(others, one))
    resolved = node.emit(relax.op.where(is_open, rest, target))
    return relax.op.reshape(node.tensor(0), node.run_time_sizes(resolved, count))


def _vector(node: Node, sizes: Sequence[Size]) -> relax.Expr:
    return expression_of(Value(pack_sizes(sizes)), node.builder)


def _length(node: Node, position: int) -> int:
    """The fixed number of elements of a vector."""
    shape = node.shape(position)
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise ConversionError(f"needs input {position} ({node.proto.input[position]}) to be a vector of fixed length")
    return shape[0]


def _is(size: Size, value: int) -> bool:
    return isinstance(size, int) and size == value


def _expand(node: Node) -> Converted:
    target: Sequence[Size] | None = node.sizes(1)
    if target is None:
        target = node.run_time_sizes(node.tensor(1), _length(node, 1))
    shape = node.shape(0)
    rank = max(len(shape), len(target))
    before = [1] * (rank - len(shape)) + shape
    after = [1] * (rank - len(target)) + list(target)
    sizes = [old if _is(new, 1) else new for old, new in zip(before, after, strict=True)]
    for old, new in zip(before, after, strict=True):
        node.algebra.broadcast((new, old))
    return node.tensor(0) if _same(node, sizes, shape) else relax.op.broadcast_to(node.tensor(0), sizes)


def _same(node: Node, left: Sequence[Size], right: Sequence[Size]) -> bool:
    return len(left) == len(right) and all(
        _is(node.algebra.simplify(a - b), 0) for a, b in zip(left, right, strict=True)
    )


def _flatten(node: Node) -> Converted:
    shape = node.shape(0)
    axis = node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return relax.op.reshape(node.tensor(0), [node.algebra.product(shape[:axis]), node.algebra.product(shape[axis:])])


def _at_run_time(node: Node, *positions: int) -> bool:
    """Whether one of these inputs is given, but known to the running model alone."""
    return any(node.has(position) and node.sizes(position) is None for position in positions)


def _squeeze(node: Node) -> Converted:
    return node.stock() if _at_run_time(node, 1) else relax.op.squeeze(node.tensor(0), node.axes(1))


def _unsqueeze(node: Node) -> Converted:
    if _at_run_time(node, 1):
        return node.stock()
    axes = node.axes(1)
    if axes is None:
        raise ConversionError("lacks its axes")
    return relax.op.expand_dims(node.tensor(0), axes)


def _constant_of_shape(node: Node) -> Converted:
    value = node.attribute("value")
    fill = np.zeros(1, "float32") if value is None else onnx.numpy_helper.to_array(value)
    sizes: Sequence[Size] | None = node.sizes(0)
    if sizes is None:
        sizes = node.run_time_sizes(node.tensor(0), _length(node, 0))
    return relax.op.full(list(sizes), relax.const(fill.reshape(()), str(fill.dtype)), str(fill.dtype))


def _eye_like(node: Node) -> Converted:
    data_type = node.attribute("dtype")
    dtype = node.dtype(0) if data_type is None else str(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    rows, columns = node.shape(0)
    return relax.op.eye(rows, columns, node.attribute("k", 0), dtype)


def _range(node: Node) -> Converted:
    bounds = [bound[0] for bound in (node.sizes(i) for i in range(3)) if bound is not None]
    dtype = node.dtype(0)
    if len(bounds) == 3 and dtype in ("int32", "int64"):
        return relax.op.arange(*bounds, dtype)
    start, limit, delta = (node.emit(relax.op.astype(node.tensor(i), "float64")) for i in range(3))
    count = node.emit(relax.op.ceil(relax.op.divide(relax.op.subtract(limit, start), delta)))
    count = relax.op.astype(relax.op.maximum(count, _scalar(0.0, "float64")), "int64")
    (size,) = node.run_time_sizes(node.emit(relax.op.reshape(count, (1,))), 1)
    steps = relax.op.astype(relax.op.arange(0, size, 1, "int64"), dtype)
    return relax.op.add(node.tensor(0), relax.op.multiply(steps, node.tensor(2)))


def _slice(node: Node) -> Converted:
    if "starts" in node.attributes:
        starts, ends = node.attribute("starts"), node.attribute("ends")
    else:
        starts, ends = node.sizes(1), node.sizes(2)
    if starts is None or ends is None or _at_run_time(node, 3, 4):
        return node.stock()
    shape = node.shape(0)
    axes = [_axis(axis, len(shape)) for axis in node.axes(3) or range(len(starts))]
    given = node.constant(4, "its steps")
    steps = [1] * len(starts) if given is None else given.tolist()
    begins, stops = [], []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ConversionError("has a step of 0")
        begin, stop = _bounds(node, start, end, shape[axis], step)
        begins.append(begin)
        stops.append(stop)
    if any(step < 0 for step in steps):
        return relax.op.strided_slice(node.tensor(0), axes, begins, stops, steps)
    return relax.op.strided_slice(node.tensor(0), axes, begins, stops, steps, assume_inbound=True)


def _bounds(node: Node, start: Size, end: Size, size: Size, step: int) -> tuple[Size, Size]:
    """A slice's start and end within the tensor."""
    algebra = node.algebra
    if step < 0:
        if not all(isinstance(value, int) for value in (start, end, size)):
            return start, end
        begin, stop, _ = slice(start, end, step).indices(size)
        return begin, stop if stop >= 0 else -size - 1
    begin = _clamp(node, _from_front(node, start, size), size)
    stop = _clamp(node, _from_front(node, end, size), size)
    return begin, algebra.maximum(begin, stop)


def _from_front(node: Node, position: Size, size: Size) -> Size:
    """A position that counts from the end where it is negative."""
    algebra = node.algebra
    if isinstance(position, int):
        return algebra.simplify(size + position) if position < 0 else position
    try:
        return algebra.simplify(size + position) if algebra.holds(position < 0) else position
    except UndecidedError:
        return algebra.simplify(tirx.Select(position < 0, size + position, position))


def _clamp(node: Node, position: Size, size: Size) -> Size:
    return node.algebra.maximum(0, node.algebra.minimum(position, size))


def _split(node: Node) -> Converted:
    axis = _axis(node.attribute("axis", 0), node.rank(0))
    size = node.shape(0)[axis]
    parts = list(node.attributes["split"]) if "split" in node.attributes else node.sizes(1)
    if node.has(1) and parts is None:
        raise ConversionError("needs the sizes of its parts to be known")
    count = len(node.proto.output)
    if parts is None:
        part = node.algebra.simplify((size + count - 1) // count)
        parts = [part] * (count - 1) + [node.algebra.simplify(size - part * (count - 1))]
    ends = np.cumsum(np.array(parts, dtype=object)).tolist()
    if isinstance(size, int) and all(isinstance(part, int) and part > 0 for part in parts):
        return relax.op.split(node.tensor(0), ends[:-1], axis) if count > 1 else (node.tensor(0),)
    starts = [0, *ends[:-1]]
    return [
        relax.op.strided_slice(node.tensor(0), [axis], [start], [node.algebra.simplify(end)], [1], assume_inbound=True)
        for start, end in zip(starts, ends, strict=True)
    ]


def _concat(node: Node) -> Converted:
    axis = _axis(node.attribute("axis", 1), node.rank(0))
    tensors = [node.tensor(i) for i in range(len(node.inputs))]
    # An empty part adds nothing, and TVM cannot schedule the loops that would compute it.
    parts = [tensor for i, tensor in enumerate(tensors) if not _is(node.shape(i)[axis], 0)] or tensors[:1]
    return relax.op.concat(parts, axis) if len(parts) > 1 else parts[0]


def _tile(node: Node) -> Converted:
    repeats = node.sizes(1)
    if repeats is None:
        return node.stock()
    if all(isinstance(repeat, int) for repeat in repeats):
        return relax.op.tile(node.tensor(0), repeats)
    shape = node.shape(0)
    doubled = node.emit(relax.op.reshape(node.tensor(0), [s for size in shape for s in (1, size)]))
    pairs = list(zip(repeats, shape, strict=True))
    repeated = node.emit(relax.op.broadcast_to(doubled, [s for pair in pairs for s in pair]))
    return relax.op.reshape(repeated, [node.algebra.simplify(repeat * size) for repeat, size in pairs])


_PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def _pad(node: Node) -> Converted:
    rank = node.rank(0)
    given = node.constant(1, "its pads")
    pads = list(node.attributes["pads"]) if given is None else given.tolist()
    axes = [_axis(axis, rank) for axis in node.axes(3) or range(rank)]
    fill = node.constant(2, "its padding value")
    value = node.attribute("value", 0.0) if fill is None else fill.item()
    mode = node.attribute("mode", "constant")
    widths = [(0, 0)] * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        widths[axis] = (before, after)
    data = _crop(node, widths)
    padded = [max(width, 0) for pair in widths for width in pair]
    return relax.op.nn.pad(data, padded, _PAD_MODES[mode], value) if any(padded) else data


def _crop(node: Node, widths: Sequence[tuple[int, int]]) -> relax.Expr:
    """The input without what negative padding takes away."""
    cropped = [axis for axis, pair in enumerate(widths) if min(pair) < 0]
    if not cropped:
        return node.tensor(0)
    shape = node.shape(0)
    starts = [max(-widths[axis][0], 0) for axis in cropped]
    ends = [node.algebra.simplify(shape[axis] + min(widths[axis][1], 0)) for axis in cropped]
    return node.emit(relax.op.strided_slice(node.tensor(0), cropped, starts, ends, assume_inbound=True))


# Indexing


def _gather(node: Node) -> Converted:
    # Wrapping is how negative indices count from the end, and it keeps every index inside the tensor.
    return relax.op.take(node.tensor(0), node.tensor(1), _axis(node.attribute("axis", 0), node.rank(0)), mode="wrap")


def _from_front_indices(node: Node, indices: relax.Expr, size: Size) -> relax.Expr:
    """Indices with negative ones counted from the end."""
    length = _size_scalar(node, size, indices.struct_info.dtype)
    negative = relax.op.less(indices, _scalar(0, indices.struct_info.dtype))
    return node.emit(relax.op.where(negative, relax.op.add(indices, length), indices))


def _size_scalar(node: Node, size: Size, dtype: str) -> relax.Expr:
    if isinstance(size, int):
        return _scalar(size, dtype)
    scalar = node.emit(relax.op.reshape(_vector(node, [size]), ()))
    return scalar if dtype == "int64" else node.emit(relax.op.astype(scalar, dtype))


def _gather_elements(node: Node) -> Converted:
    axis = _axis(node.attribute("axis", 0), node.rank(0))
    indices = _from_front_indices(node, node.tensor(1), node.shape(0)[axis])
    return relax.op.gather_elements(node.tensor(0), indices, axis)


def _gather_nd(node: Node) -> Converted:
    batch = node.attribute("batch_dims", 0)
    indices, shape = node.tensor(1), node.shape(0)
    depth = node.shape(1)[-1]
    if not isinstance(depth, int):
        raise ConversionError("needs the last dimension of its indices to be fixed")
    length = _vector(node, shape[batch : batch + depth])
    negative = relax.op.less(indices, _scalar(0, "int64"))
    indices = node.emit(relax.op.where(negative, relax.op.add(indices, length), indices))
    return relax.op.gather_nd(node.tensor(0), indices, batch)


def _one_hot(node: Node) -> Converted:
    depth = node.sizes(1)
    if depth is None:
        raise ConversionError("needs its depth to be known")
    rank = node.rank(0)
    axis = _axis(node.attribute("axis", -1), rank + 1)
    size = int(depth[0]) if isinstance(depth[0], int | float) else depth[0]
    indices = _from_front_indices(node, node.emit(relax.op.astype(node.tensor(0), "int64")), size)
    classes = node.emit(relax.op.arange(0, size, 1, "int64"))
    classes = node.emit(relax.op.reshape(classes, [size if i == axis else 1 for i in range(rank + 1)]))
    hit = node.emit(relax.op.equal(relax.op.expand_dims(indices, axis), classes))
    off, on = (
        node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(node.tensor(2), [0], [i], [i + 1])), [0]))
        for i in range(2)
    )
    return relax.op.where(hit, on, off)


def _top_k(node: Node) -> Converted:
    count = [node.attribute("k")] if "k" in node.attributes else node.sizes(1)
    if count is None or not isinstance(count[0], int):
        raise ConversionError("needs its k to be a constant")
    axis, largest = _axis(node.attribute("axis", -1), node.rank(0)), bool(node.attribute("largest", 1))
    return relax.op.topk(node.tensor(0), count[0], axis, "both", largest, "int64")


def _trilu(node: Node) -> Converted:
    offset = node.sizes(1) or [0]
    upper = bool(node.attribute("upper", 1))
    if node.has(1) and node.sizes(1) is None:
        return _trilu_at_run_time(node, upper)
    if not isinstance(offset[0], int):
        raise ConversionError("needs its diagonal to be a constant")
    return (relax.op.triu if upper else relax.op.tril)(node.tensor(0), offset[0])


def _trilu_at_run_time(node: Node, upper: bool) -> Converted:
    rows, columns = node.shape(0)[-2:]
    row = node.emit(relax.op.reshape(relax.op.arange(0, rows, 1, "int64"), [rows, 1]))
    column = node.emit(relax.op.arange(0, columns, 1, "int64"))
    distance = relax.op.subtract(relax.op.subtract(column, row), node.tensor(1))
    keep = (relax.op.greater_equal if upper else relax.op.less_equal)(distance, _scalar(0, "int64"))
    return relax.op.where(keep, node.tensor(0), _scalar(0, node.dtype(0)))


# Elementwise


def _chain(function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    """A converter of an operator of any number of inputs."""

    def convert(node: Node) -> Converted:
        tensors = [node.tensor(i) for i in range(len(node.inputs))]
        return functools.reduce(lambda a, b: node.emit(function(a, b)), tensors)

    return convert


def _mean(node: Node) -> Converted:
    total = _chain(relax.op.add)(node)
    return relax.op.divide(total, _scalar(len(node.inputs), node.dtype(0)))


def _cast(node: Node) -> Converted:
    return _cast_to(node, str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("to"))))


def _cast_to(node: Node, target: str) -> relax.Expr:
    if target == "bool":
        return relax.op.not_equal(node.tensor(0), _scalar(0, node.dtype(0)))
    return relax.op.astype(node.tensor(0), target)


def _cast_like(node: Node) -> Converted:
    value = node.value(0)
    if value is not None and value.known is not None and not value.known.symbolic:
        return Known.constant(value.known.values.astype(node.dtype(1)))
    return _cast_to(node, node.dtype(1))


def _clip(node: Node) -> Converted:
    dtype = node.dtype(0)
    result = node.tensor(0)
    for position, name, bound in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        if name in node.attributes:
            result = node.emit(bound(result, _scalar(node.attributes[name], dtype)))
        elif node.has(position):
            result = node.emit(bound(result, node.tensor(position)))
    return result


def _pow(node: Node) -> Converted:
    dtype, exponent = node.dtype(0), node.dtype(1)
    if exponent == dtype:
        return relax.op.power(node.tensor(0), node.tensor(1))
    if exponent in _EXACT and dtype not in _EXACT:
        result = relax.op.power(relax.op.astype(node.tensor(0), exponent), node.tensor(1))
        return relax.op.astype(node.emit(result), dtype)
    return relax.op.power(node.tensor(0), relax.op.astype(node.tensor(1), dtype))


def _mod(node: Node) -> Converted:
    function = relax.op.mod if node.attribute("fmod", 0) else relax.op.floor_mod
    return function(node.tensor(0), node.tensor(1))


def _prelu(node: Node) -> Converted:
    data = node.tensor(0)
    negative = relax.op.less(data, _scalar(0, node.dtype(0)))
    return relax.op.where(negative, relax.op.multiply(data, node.tensor(1)), data)


def _dropout(node: Node) -> Converted:
    """The identity, as dropout is outside training; with a mask that keeps everything."""
    training = node.constant(2, "its training mode")
    if training is not None and training.item():
        raise ConversionError("is in training mode; export the model for inference")
    mask_dtype = "bool" if node.opset >= 10 else node.dtype(0)
    return node.tensor(0), relax.op.ones(node.shape(0), mask_dtype)


# Reductions


def _sum_of_squares(data: relax.Expr, axes: list[int] | None, keep: bool) -> relax.Expr:
    return relax.op.sum(relax.op.multiply(data, data), axes, keep)


def _log_sum_exp(data: relax.Expr, axes: list[int] | None, keep: bool) -> relax.Expr:
    peak = relax.op.max(data, axes, True)
    total = relax.op.log(relax.op.sum(relax.op.exp(relax.op.subtract(data, peak)), axes, keep))
    return relax.op.add(total, relax.op.max(data, axes, keep))


_REDUCTIONS: dict[str, Callable[[relax.Expr, list[int] | None, bool], relax.Expr]] = {
    "ReduceL1": lambda data, axes, keep: relax.op.sum(relax.op.abs(data), axes, keep),
    "ReduceL2": lambda data, axes, keep: relax.op.sqrt(_sum_of_squares(data, axes, keep)),
    "ReduceLogSum": lambda data, axes, keep: relax.op.log(relax.op.sum(data, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": relax.op.max,
    "ReduceMean": relax.op.mean,
    "ReduceMin": relax.op.min,
    "ReduceProd": relax.op.prod,
    "ReduceSum": relax.op.sum,
    "ReduceSumSquare": _sum_of_squares,
}


def _reduce(node: Node) -> Converted:
    axes = node.axes(1)
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return node.tensor(0)
    data, dtype = node.tensor(0), node.dtype(0)
    function, keep = _REDUCTIONS[node.proto.op_type], bool(node.attribute("keepdims", 1))
    if dtype != "bool":
        return function(data, axes or None, keep)
    reduced = function(node.emit(relax.op.astype(data, "int8")), axes or None, keep)
    return relax.op.astype(node.emit(reduced), "bool")


def _lp_normalization(node: Node) -> Converted:
    order, axis = node.attribute("p", 2), [_axis(node.attribute("axis", -1), node.rank(0))]
    norm = _REDUCTIONS[f"ReduceL{order}"](node.tensor(0), axis, True)
    safe = relax.op.where(relax.op.equal(norm, _scalar(0, node.dtype(0))), _scalar(1, node.dtype(0)), norm)
    return relax.op.divide(node.tensor(0), safe)


# Normalization


def _stash(node: Node) -> str:
    """The type that a normalization computes in, which ``stash_type`` gives where it is no 32-bit float."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("stash_type", onnx.TensorProto.FLOAT)))


def _normalized_axes(node: Node) -> list[int]:
    rank = node.rank(0)
    return list(range(_axis(node.attribute("axis", -1), rank), rank))


def _over_axes(node: Node, position: int, axes: list[int]) -> relax.Expr:
    """A scale or bias with exactly the shape of the normalized axes."""
    sizes = [node.shape(0)[axis] for axis in axes]
    tensor = node.tensor(position)
    return tensor if node.shape(position) == sizes else node.emit(relax.op.broadcast_to(tensor, sizes))


def _layer_normalization(node: Node) -> Converted:
    axes, epsilon = _normalized_axes(node), node.attribute("epsilon", 1e-5)
    scale = _over_axes(node, 1, axes)
    bias = _over_axes(node, 2, axes) if node.has(2) else node.emit(relax.op.zeros_like(scale))
    result = relax.op.nn.layer_norm(node.tensor(0), scale, bias, axes, epsilon)
    if not (node.wants(1) or node.wants(2)):
        return [result] + [relax.op.zeros((), "float32")] * (len(node.proto.output) - 1)
    data = node.emit(relax.op.astype(node.tensor(0), _stash(node)))
    mean = node.emit(relax.op.mean(data, axes, True))
    centered = node.emit(relax.op.subtract(data, mean))
    variance = relax.op.mean(relax.op.multiply(centered, centered), axes, True)
    deviation = relax.op.rsqrt(relax.op.add(variance, _scalar(epsilon, _stash(node))))
    return result, mean, deviation


def _rms_normalization(node: Node) -> Converted:
    axes, epsilon, stash = _normalized_axes(node), node.attribute("epsilon", 1e-5), _stash(node)
    if len(axes) == 1 and stash == node.dtype(0):
        return relax.op.nn.rms_norm(node.tensor(0), _over_axes(node, 1, axes), axes, epsilon)
    data = node.emit(relax.op.astype(node.tensor(0), stash))
    square = relax.op.mean(relax.op.multiply(data, data), axes, True)
    scale = node.emit(relax.op.rsqrt(relax.op.add(square, _scalar(epsilon, stash))))
    normalized = relax.op.astype(node.emit(relax.op.multiply(data, scale)), node.dtype(0))
    return relax.op.multiply(normalized, node.tensor(1))


# Attention


def _attention(node: Node) -> Converted:
    """Scaled dot-product attention, as matrix products around a softmax, with the heads split and repeated."""
    query, key, value = (_heads(node, 0, "q_num_heads"), *(_heads(node, i, "kv_num_heads") for i in (1, 2)))
    if node.has(4):
        key = node.emit(relax.op.concat([node.tensor(4), key], 2))
    if node.has(5):
        value = node.emit(relax.op.concat([node.tensor(5), value], 2))
    present = key, value
    heads, width = _fixed_heads(node, query), shape_of(query, node.algebra)[3]
    scores_dtype = node.dtype(0)
    scale = node.attribute("scale", 1.0 / float(width) ** 0.5)
    transposed = relax.op.permute_dims(_repeat_heads(node, key, heads), [0, 1, 3, 2])
    scores = node.emit(relax.op.matmul(query, node.emit(transposed)))
    scores = node.emit(relax.op.multiply(scores, _scalar(scale, scores_dtype)))
    traced = {0: scores}
    cap = node.attribute("softcap", 0.0)
    if cap:
        bounded = relax.op.tanh(relax.op.divide(scores, _scalar(cap, scores_dtype)))
        scores = node.emit(relax.op.multiply(bounded, _scalar(cap, scores_dtype)))
    traced[1] = scores
    scores = traced[2] = _masked(node, scores)
    weights = traced[3] = node.emit(_softmax(node, scores))
    result = node.emit(relax.op.matmul(weights, _repeat_heads(node, value, heads)))
    if node.rank(0) == 3:
        batch, _, length, depth = shape_of(result, node.algebra)
        result = node.emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
        result = relax.op.reshape(result, [batch, length, node.algebra.simplify(heads * depth)])
    return result, *present, traced[node.attribute("qk_matmul_output_mode", 0)]


def _heads(node: Node, position: int, attribute: str) -> relax.Expr:
    """Queries, keys or values as (batch, heads, length, width)."""
    if node.rank(position) == 4:
        return node.tensor(position)
    batch, length, hidden = node.shape(position)
    count = node.attribute(attribute)
    sizes = [batch, length, count, node.algebra.simplify(hidden // count)]
    split = node.emit(relax.op.reshape(node.tensor(position), sizes))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _fixed_heads(node: Node, tensor: relax.Expr) -> int:
    heads, width = shape_of(tensor, node.algebra)[1::2]
    if not isinstance(heads, int) or not isinstance(width, int):
        raise ConversionError("needs a fixed number of heads of a fixed width")
    return heads


def _repeat_heads(node: Node, tensor: relax.Expr, heads: int) -> relax.Expr:
    groups = heads // _fixed_heads(node, tensor)
    return tensor if groups == 1 else node.emit(relax.op.repeat(tensor, groups, 1))


def _masked(node: Node, scores: relax.Expr) -> relax.Expr:
    """The scores with the mask added, and negative infinity where a key is hidden."""
    dtype = scores.struct_info.dtype
    lowest = _scalar(-np.inf, dtype)
    keys = shape_of(scores, node.algebra)[3]
    if node.has(3) and node.dtype(3) != "bool":
        scores = node.emit(relax.op.add(scores, _widen_mask(node, keys, -np.inf)))
    elif node.has(3):
        scores = node.emit(relax.op.where(_widen_mask(node, keys, False), scores, lowest))
    for visible in _visible_keys(node, scores):
        scores = node.emit(relax.op.where(node.emit(visible), scores, lowest))
    return scores


def _visible_keys(node: Node, scores: relax.Expr) -> Iterator[relax.Expr]:
    """Conditions on keys, each to broadcast over (batch, heads, queries, keys): causality, windows, padding."""
    queries, keys = shape_of(scores, node.algebra)[2:]
    past = node.shape(4)[2] if node.has(4) else 0
    column = node.emit(relax.op.arange(0, keys, 1, "int64"))
    row = node.emit(relax.op.arange(past, node.algebra.simplify(past + queries), 1, "int64"))
    row = node.emit(relax.op.reshape(row, [queries, 1]))
    if node.has(6):
        lengths = node.emit(relax.op.reshape(node.tensor(6), [node.shape(6)[0], 1, 1, 1]))
        row = node.emit(relax.op.add(row, relax.op.subtract(lengths, _size_scalar(node, queries, "int64"))))
        yield relax.op.less(column, lengths)
    if node.attribute("is_causal", 0):
        yield relax.op.less_equal(column, row)
    left, right = (node.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    if left >= 0:
        yield relax.op.greater_equal(column, relax.op.subtract(row, _scalar(left, "int64")))
    if right >= 0:
        yield relax.op.less_equal(column, relax.op.add(row, _scalar(right, "int64")))


def _widen_mask(node: Node, keys: Size, fill: float) -> relax.Expr:
    """The mask, filled up to the number of keys where it is shorter, as the standard allows."""
    shape = node.shape(3)
    missing = node.algebra.simplify(keys - shape[-1])
    if _is(missing, 0) or _is(shape[-1], 1):
        return node.tensor(3)
    rest = relax.op.full([*shape[:-1], missing], _scalar(fill, node.dtype(3)), node.dtype(3))
    return node.emit(relax.op.concat([node.tensor(3), node.emit(rest)], -1))


def _softmax(node: Node, scores: relax.Expr) -> relax.Expr:
    """Softmax over the keys, in the precision asked for; 0 for a query that a mask leaves without keys."""
    dtype = scores.struct_info.dtype
    precision = node.attribute("softmax_precision")
    inner = dtype if precision is None else str(onnx.helper.tensor_dtype_to_np_dtype(precision))
    if inner != dtype:
        scores = node.emit(relax.op.astype(scores, inner))
    weights = node.emit(relax.op.nn.softmax(scores, -1))
    if node.has(3) or node.has(6):
        comparable = weights if inner in _EXACT else node.emit(relax.op.astype(weights, "float32"))
        weights = node.emit(relax.op.where(relax.op.isnan(comparable), _scalar(0, inner), weights))
    return relax.op.astype(weights, dtype) if inner != dtype else weights


# Quantized operators, by what they mean: numbers with a scale and a zero point


def _along(node: Node, tensor: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scale or zero point per element of one axis, shaped to broadcast over the others."""
    if tensor.struct_info.ndim != 1:
        return tensor
    (size,) = shape_of(tensor, node.algebra)
    if _is(size, 1):
        return node.emit(relax.op.reshape(tensor, ()))
    return node.emit(relax.op.reshape(tensor, [size if i == axis else 1 for i in range(rank)]))


def _dequantized(node: Node, data: int, scale: int, zero: int, axis: int) -> relax.Expr:
    rank = node.rank(data)
    wide = relax.op.astype(node.tensor(data), "int32")
    offset = relax.op.astype(_along(node, node.tensor(zero), rank, axis), "int32")
    difference = node.emit(relax.op.astype(relax.op.subtract(wide, offset), "float32"))
    factor = relax.op.astype(_along(node, node.tensor(scale), rank, axis), "float32")
    return node.emit(relax.op.multiply(difference, factor))


def _quantized(node: Node, result: relax.Expr, scale: int, zero: int) -> relax.Expr:
    dtype = node.dtype(zero)
    factor = relax.op.astype(_along(node, node.tensor(scale), 0, 0), "float32")
    offset = relax.op.astype(_along(node, node.tensor(zero), 0, 0), "float32")
    rounded = relax.op.add(relax.op.round(relax.op.divide(result, factor)), offset)
    limits = np.iinfo(dtype)
    return relax.op.astype(relax.op.clip(node.emit(rounded), float(limits.min), float(limits.max)), dtype)


def _qlinear_matmul(node: Node) -> Converted:
    left = _dequantized(node, 0, 1, 2, node.rank(0) - 2)
    right = _dequantized(node, 3, 4, 5, node.rank(3) - 1)
    return _quantized(node, node.emit(relax.op.matmul(left, right)), 6, 7)


def _qlinear_conv(node: Node) -> Converted:
    data, weight = _dequantized(node, 0, 1, 2, 1), _dequantized(node, 3, 4, 5, 0)
    plain = dataclasses.replace(node, inputs=[Value(expression=data), Value(expression=weight)])
    result = node.emit(plain.stock("Conv"))
    if node.has(8):
        scale = relax.op.multiply(node.tensor(1), node.tensor(4))
        bias = node.emit(relax.op.multiply(relax.op.astype(node.tensor(8), "float32"), scale))
        result = node.emit(relax.op.add(result, _along(node, bias, node.rank(0), 1)))
    return _quantized(node, result, 6, 7)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", name): converter
    for name, converter in {
        **dict.fromkeys(_REDUCTIONS, _reduce),
        "Attention": _attention,
        "Cast": _cast,
        "CastLike": _cast_like,
        "Clip": _clip,
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "Dropout": _dropout,
        "Expand": _expand,
        "EyeLike": _eye_like,
        "Flatten": _flatten,
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "LayerNormalization": _layer_normalization,
        "LpNormalization": _lp_normalization,
        "Max": _chain(relax.op.maximum),
        "Mean": _mean,
        "Min": _chain(relax.op.minimum),
        "Mod": _mod,
        "OneHot": _one_hot,
        "PRelu": _prelu,
        "Pad": _pad,
        "Pow": _pow,
        "QLinearConv": _qlinear_conv,
        "QLinearMatMul": _qlinear_matmul,
        "RMSNormalization": _rms_normalization,
        "Range": _range,
        "Reshape": _reshape,
        "Shape": _shape,
        "Size": _shape,
        "Slice": _slice,
        "Split": _split,
        "Squeeze": _squeeze,
        "Sum": _chain(relax.op.add),
        "Tile": _tile,
        "TopK": _top_k,
        "Trilu": _trilu,
        "Unsqueeze": _unsqueeze,
    }.items()
}
