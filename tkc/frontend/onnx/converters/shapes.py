"""Operators that change a tensor's shape, or take it apart and together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tkc.frontend.onnx.converters.run_time_shapes import padded, sliced, split, squeezed, tiled, unsqueezed
from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    at_run_time,
    fixed_length,
    is_number,
    normalized_axis,
    scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size, UndecidedError
from tkc.frontend.onnx.values import ConversionError


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
    result = [shape[i] if is_number(size, 0) and not keep_zero else size for i, size in enumerate(target)]
    if any(is_number(size, -1) for size in result):
        open_axis = next(i for i, size in enumerate(result) if is_number(size, -1))
        others = node.algebra.product([size for i, size in enumerate(result) if i != open_axis])
        total = node.algebra.product(shape)
        result[open_axis] = _quotient(node, total, others)
    else:
        node.require_equal(node.algebra.product(shape), node.algebra.product(result))
    if keep_zero and any(is_number(size, 0) for size in result):  # which Relax takes for the size that the axis has
        return relax.op.zeros(result, node.dtype(0))
    return relax.op.reshape(node.tensor(0), result)


def _quotient(node: Node, total: Size, part: Size) -> Size:
    if is_number(part, 0):
        raise ConversionError("reshapes an empty tensor to a size that cannot be told; correct the model")
    node.require_multiple(total, part)
    return node.algebra.simplify(total // part)


def _reshape_at_run_time(node: Node, keep_zero: bool) -> Converted:
    """Reshape to sizes that the model computes: 0 keeps the input's size, -1 takes what is left."""
    count, shape, target = fixed_length(node, 1), node.shape(0), node.tensor(1)
    one = scalar(1, "int64")
    if not keep_zero:
        kept = size_vector(node, [*shape, *[1] * count][:count])
        target = node.emit(relax.op.where(relax.op.equal(target, scalar(0, "int64")), kept, target))
    is_open = node.emit(relax.op.equal(target, scalar(-1, "int64")))
    others = node.emit(relax.op.prod(relax.op.where(is_open, one, target)))
    total = size_vector(node, [node.algebra.product(shape)])
    rest = relax.op.floor_divide(total, relax.op.maximum(others, one))
    resolved = node.emit(relax.op.where(is_open, rest, target))
    fits = node.emit(relax.op.equal(relax.op.prod(resolved), relax.op.reshape(total, ())))
    return relax.op.reshape(node.tensor(0), node.run_time_sizes(resolved, count, fits))


def _expand(node: Node) -> Converted:
    target: Sequence[Size] | None = node.sizes(1)
    if target is None:
        return _expand_at_run_time(node)
    shape = node.shape(0)
    rank = max(len(shape), len(target))
    before = [1] * (rank - len(shape)) + shape
    after = [1] * (rank - len(target)) + list(target)
    sizes = [old if is_number(new, 1) else new for old, new in zip(before, after, strict=True)]
    for old, new in zip(before, after, strict=True):
        node.algebra.broadcast((new, old))
    return node.tensor(0) if _same(node, sizes, shape) else relax.op.broadcast_to(node.tensor(0), sizes)


def _expand_at_run_time(node: Node) -> Converted:
    """Expand to sizes that the model computes, of which 1 keeps the input's size."""
    shape, count = node.shape(0), fixed_length(node, 1)
    rank = max(len(shape), count)
    ones = [size_vector(node, [1] * (rank - count))] if rank > count else []
    target = node.emit(relax.op.concat([*ones, node.tensor(1)])) if ones else node.tensor(1)
    kept = size_vector(node, [1] * (rank - len(shape)) + shape)
    one = scalar(1, "int64")
    target = node.emit(relax.op.where(relax.op.equal(target, one), kept, target))
    fitting = relax.op.logical_or(relax.op.equal(kept, one), relax.op.equal(kept, target))
    fits = node.emit(relax.op.min(relax.op.astype(fitting, "int64")))
    return relax.op.broadcast_to(node.tensor(0), node.run_time_sizes(target, rank, fits))


def _same(node: Node, left: Sequence[Size], right: Sequence[Size]) -> bool:
    return len(left) == len(right) and all(
        is_number(node.algebra.simplify(a - b), 0) for a, b in zip(left, right, strict=True)
    )


def _flatten(node: Node) -> Converted:
    shape = node.shape(0)
    axis = node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return relax.op.reshape(node.tensor(0), [node.algebra.product(shape[:axis]), node.algebra.product(shape[axis:])])


def _squeeze(node: Node) -> Converted:
    if "axes" not in node.attributes and at_run_time(node, 1):
        return squeezed(node)
    axes, shape = node.axes(1), node.shape(0)
    if axes is None:
        # A size that may be 1 would decide how many dimensions the result has.
        axes = [axis for axis, size in enumerate(shape) if is_number(size, 1)]
        for size in shape:
            if not isinstance(size, int):
                node.require_at_least(size, 2)
    if any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise ConversionError(f"has axes {axes} for a tensor of {len(shape)} dimensions; correct the model")
    for axis in axes:
        node.require_equal(shape[axis], 1)
    return relax.op.squeeze(node.tensor(0), axes)


def _unsqueeze(node: Node) -> Converted:
    if at_run_time(node, 1):
        return unsqueezed(node)
    axes = node.axes(1)
    if axes is None:
        raise ConversionError("lacks its axes; correct the model")
    rank = node.rank(0) + len(axes)
    if len({axis % rank for axis in axes if -rank <= axis < rank}) != len(axes):
        raise ConversionError(f"has the axes {axes[:8]}; expected different ones, from {-rank} to {rank - 1}")
    return relax.op.expand_dims(node.tensor(0), axes)


def _slice(node: Node) -> Converted:
    if "starts" in node.attributes:
        starts, ends = node.attribute("starts"), node.attribute("ends")
    else:
        starts, ends = node.sizes(1), node.sizes(2)
    if starts is None or ends is None or at_run_time(node, 3, 4):
        return sliced(node)
    shape = node.shape(0)
    axes = [normalized_axis(axis, len(shape)) for axis in node.axes(3) or range(len(starts))]
    given = node.constant(4, "its steps")
    steps = [1] * len(starts) if given is None else given.tolist()
    if any(step == 0 for step in steps):
        raise ConversionError("has a step of 0; correct the model")
    bounds = [
        _bounds(node, start, end, shape[axis], step)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    ]
    begins, stops = ([bound[side] for bound in bounds] for side in (0, 1))
    distances = [min(abs(step), _ALL) for step in steps]
    forwards = relax.op.strided_slice(node.tensor(0), axes, begins, stops, distances, assume_inbound=True)
    backwards = [axis for axis, step in zip(axes, steps, strict=True) if step < 0]
    return functools.reduce(lambda data, axis: relax.op.flip(node.emit(data), axis), backwards, forwards)


def _bounds(node: Node, start: Size, end: Size, size: Size, step: int) -> tuple[Size, Size]:
    """A slice's start and end within the tensor, as it is taken from the front to the back."""
    algebra = node.algebra
    if step > 0:
        begin = _clamp(node, _from_front(node, start, size), size)
        return begin, algebra.maximum(begin, _clamp(node, _from_front(node, end, size), size))
    # What is behind the last element, and what is before it: each by one further to the back than it counts.
    distance = min(-step, _ALL)
    begin, stop = (_clamp(node, _after(node, position, size), size) for position in (start, end))
    count = algebra.maximum(0, algebra.simplify((begin - stop + distance - 1) // distance))
    first = algebra.simplify(begin - 1 - (count - 1) * distance)
    return first, algebra.maximum(first, begin)


def _after(node: Node, position: Size, size: Size) -> Size:
    """The position behind ``position``, which counts from the end where that is negative; 0 where it is far before."""
    if isinstance(position, int) and position <= -_ALL:
        return 0
    return node.algebra.simplify(_from_front(node, position, size) + 1)


_ALL = np.iinfo("int32").max
"""What ONNX recommends as an end beyond every element. As a bound of a size, memory would be planned for it."""


def _from_front(node: Node, position: Size, size: Size) -> Size:
    """A position that counts from the end where it is negative."""
    algebra = node.algebra
    if isinstance(position, int):
        if abs(position) >= _ALL:
            return size if position > 0 else 0
        return algebra.simplify(size + position) if position < 0 else position
    try:
        return algebra.simplify(size + position) if algebra.holds(position < 0) else position
    except UndecidedError:
        return algebra.simplify(tirx.Select(position < 0, size + position, position))


def _clamp(node: Node, position: Size, size: Size) -> Size:
    return node.algebra.maximum(0, node.algebra.minimum(position, size))


def _space_to_depth(node: Node) -> Converted:
    """Blocks of an image as channels: the position in the block varies slowest (DCR), or the channel does (CRD)."""
    block = node.attribute("blocksize")
    batch, channels, height, width = node.shape(0)
    for size in (height, width):
        node.require_multiple(size, block)
    rows, columns = node.algebra.divide(height, block), node.algebra.divide(width, block)
    split = node.emit(relax.op.reshape(node.tensor(0), [batch, channels, rows, block, columns, block]))
    order = [0, 1, 3, 5, 2, 4] if node.attribute("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = node.emit(relax.op.permute_dims(split, order))
    return relax.op.reshape(moved, [batch, node.algebra.simplify(channels * block * block), rows, columns])


def _depth_to_space(node: Node) -> Converted:
    node.require_multiple(node.shape(0)[1], node.attribute("blocksize") ** 2)
    return node.stock()


def _split(node: Node) -> Converted:
    axis = normalized_axis(node.attribute("axis", 0), node.rank(0))
    size = node.shape(0)[axis]
    parts = list(node.attributes["split"]) if "split" in node.attributes else node.sizes(1)
    if node.has(1) and parts is None:
        return split(node, axis)
    count = len(node.proto.output)
    if parts is not None and all(isinstance(part, int) for part in parts):
        total = sum(parts)  # a size that is not known is this one, or a call fails
        node.require_shape(0, [total if i == axis else other for i, other in enumerate(node.shape(0))])
        size = node.shape(0)[axis]
    elif parts is not None:
        node.require_equal(size, node.algebra.simplify(sum(parts)))
    else:
        if "num_outputs" not in node.attributes:
            node.require_multiple(size, count)
        part = node.algebra.simplify((size + count - 1) // count)
        parts = [part] * (count - 1) + [node.algebra.simplify(size - part * (count - 1))]
    for part in parts:
        node.require_at_least(part, 0)
    ends = np.cumsum(np.array(parts, dtype=object)).tolist()
    if isinstance(size, int) and all(isinstance(part, int) and part > 0 for part in parts):
        return relax.op.split(node.tensor(0), ends[:-1], axis) if count > 1 else (node.tensor(0),)
    starts = [0, *ends[:-1]]
    return [
        relax.op.strided_slice(node.tensor(0), [axis], [start], [node.algebra.simplify(end)], [1], assume_inbound=True)
        for start, end in zip(starts, ends, strict=True)
    ]


def _concat(node: Node) -> Converted:
    axis = normalized_axis(node.attribute("axis", 1), node.rank(0))
    tensors = [node.tensor(i) for i in range(len(node.inputs))]
    # An empty part adds nothing, and TVM cannot schedule the loops that would compute it.
    parts = [tensor for i, tensor in enumerate(tensors) if not is_number(node.shape(i)[axis], 0)] or tensors[:1]
    return relax.op.concat(parts, axis) if len(parts) > 1 else parts[0]


def _tile(node: Node) -> Converted:
    repeats = node.sizes(1)
    if repeats is None:
        return tiled(node)
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
    pads_known = node.sizes(1) if node.has(1) else list(node.attributes["pads"])
    if at_run_time(node, 1, 2, 3) or not all(isinstance(pad, int) for pad in pads_known or ()):
        return _pad_at_run_time(node)
    given = node.constant(1, "its pads")
    pads = list(node.attributes["pads"]) if given is None else given.tolist()
    axes = [normalized_axis(axis, rank) for axis in node.axes(3) or range(rank)]
    fill = node.constant(2, "its padding value")
    value = node.attribute("value", 0.0) if fill is None else fill.item()
    mode = node.attribute("mode", "constant")
    widths = [(0, 0)] * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        widths[axis] = (before, after)
    _fit_padding(node, widths, mode)
    data = _crop(node, widths)
    padded = [max(width, 0) for pair in widths for width in pair]
    if not any(padded):
        return data
    if mode == "constant" and isinstance(value, int) and int(float(value)) != value:
        return _padded_by_large(node, data, padded, value)
    return relax.op.nn.pad(data, padded, _PAD_MODES[mode], value)


def _fit_padding(node: Node, widths: Sequence[tuple[int, int]], mode: str) -> None:
    """See to it that no more is taken away than there is, and that there is what is repeated or mirrored."""
    for size, pair in zip(node.shape(0), widths, strict=True):
        left, most = node.algebra.simplify(size + sum(min(width, 0) for width in pair)), max(pair)
        least = 0 if most <= 0 or mode == "constant" else most + 1 if mode == "reflect" else 1
        if min(pair) < 0 or least:
            node.require_at_least(left, least)


def _pad_at_run_time(node: Node) -> Converted:
    dtype = node.dtype(0)
    fill = scalar(node.attribute("value", 0.0), dtype)
    if node.has(2) and is_number(node.algebra.product(node.shape(2)), 1):
        fill = node.emit(relax.op.reshape(node.tensor(2), ()))
    return padded(node, node.attribute("mode", "constant"), fill)


def _padded_by_large(node: Node, data: relax.Expr, padded: list[int], value: int) -> relax.Expr:
    """``data`` padded by a whole number that float64, in which the operator keeps its value, has not."""
    is_data = node.emit(relax.op.nn.pad(relax.op.full_like(data, scalar(1, "bool"), "bool"), padded))
    return relax.op.where(is_data, relax.op.nn.pad(data, padded), scalar(value, data.struct_info.dtype))


def _crop(node: Node, widths: Sequence[tuple[int, int]]) -> relax.Expr:
    """The input without what negative padding takes away."""
    cropped = [axis for axis, pair in enumerate(widths) if min(pair) < 0]
    if not cropped:
        return node.tensor(0)
    shape = node.shape(0)
    starts = [max(-widths[axis][0], 0) for axis in cropped]
    ends = [node.algebra.simplify(shape[axis] + min(widths[axis][1], 0)) for axis in cropped]
    return node.emit(relax.op.strided_slice(node.tensor(0), cropped, starts, ends, assume_inbound=True))


CONVERTERS: dict[str, Converter] = {
    "DepthToSpace": _depth_to_space,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _shape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}
