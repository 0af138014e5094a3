"""Resize and Upsample of an axis whose size or scale only the running model has.

Each axis is resized by itself. A tensor computed at run time says which old elements each new one is made of, and
another one by which weights; :mod:`tkc.frontend.onnx.converters.resize` computes the same where all is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    at_run_time,
    is_number,
    normalized_axis,
    scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError

SUPPORT = {"linear": 1, "cubic": 2}
"""How many elements on either side of a point are interpolated, where an axis does not shrink."""


@dataclass(frozen=True)
class Options:
    """The attributes of a Resize; ``kind`` is nearest, linear or cubic."""

    kind: str
    coordinates: str
    rounding: str
    antialias: bool
    exclude_outside: bool
    sharpness: float
    extrapolation: float
    policy: str


@dataclass(frozen=True)
class _Axis:
    """From ``old`` to ``new`` elements; ``numbers`` are the scale, and begin and end of what is shown, float64 [3]."""

    position: int
    old: Size
    new: Size
    numbers: relax.Expr


def resized(node: Node, options: Options, scales_at: int, sizes_at: int | None) -> Converted:
    """The node's first input, resized as ``options`` say; the scales and sizes are inputs at these positions."""
    dtype = node.dtype(0)
    inner = dtype if options.kind == "nearest" or dtype in EXACT else "float32"
    data = node.emit(relax.op.astype(node.tensor(0), inner)) if inner != dtype else node.tensor(0)
    for axis in _axes(node, options, scales_at, sizes_at):
        data = _resampled(node, data, axis, options)
    return relax.op.astype(data, dtype) if inner != dtype else data


def _axes(node: Node, options: Options, scales_at: int, sizes_at: int | None) -> list[_Axis]:
    shape, rank = node.shape(0), node.rank(0)
    positions = [normalized_axis(axis, rank) for axis in node.attribute("axes", range(rank))]
    old = [shape[position] for position in positions]
    if "scales" in node.attributes or _is_given(node, scales_at):
        scales, new = _by_scales(node, old, scales_at)
    elif sizes_at is not None and _is_given(node, sizes_at):
        scales, new = _by_sizes(node, old, sizes_at, options.policy)
    else:
        raise ConversionError("has neither scales nor sizes; correct the model")
    whole = [0.0] * len(old) + [1.0] * len(old)
    if options.coordinates == "tf_crop_and_resize" and _is_given(node, 1):
        node.require_shape(1, [2 * len(old)])
    crops = options.coordinates == "tf_crop_and_resize" and _is_given(node, 1)
    roi = _as_float64(node, node.tensor(1)) if crops else relax.const(np.array(whole), "float64")
    axes = []
    for i, (position, size) in enumerate(zip(positions, old, strict=True)):
        if not crops and is_number(node.algebra.simplify(new[i] - size), 0) and _keeps(node, scales_at, i):
            continue
        parts = [_element(node, scales, i), _element(node, roi, i), _element(node, roi, len(old) + i)]
        axes.append(_Axis(position, size, new[i], node.emit(relax.op.concat(parts, 0))))
    return axes


def _keeps(node: Node, scales_at: int, axis: int) -> bool:
    """Whether an axis that keeps its size has the scale 1: a scale a little above 1 may round down to it."""
    if "scales" in node.attributes:
        return bool(node.attributes["scales"][axis] == 1)
    if not _is_given(node, scales_at):
        return True
    known = node.sizes(scales_at)
    return known is not None and is_whole(known[axis]) and float(known[axis]) == 1


def is_whole(number: object) -> bool:
    """Whether a scale is a whole number that is known."""
    return isinstance(number, int | float) and math.isfinite(number) and number == math.floor(number)


def _is_given(node: Node, position: int) -> bool:
    """Whether an input is given, and not by no elements, as exporters write that it is not."""
    return node.has(position) and not (node.rank(position) == 1 and is_number(node.shape(position)[0], 0))


def _by_scales(node: Node, old: Sequence[Size], position: int) -> tuple[relax.Expr, Sequence[Size]]:
    known: list[float] | None
    if "scales" in node.attributes:
        known = [float(scale) for scale in node.attributes["scales"]]
    elif at_run_time(node, position):
        known = None
    else:
        given = node.constant(position, "its scales")
        known = None if given is None else given.astype("float64").ravel().tolist()
    scales = _as_float64(node, node.tensor(position)) if known is None else relax.const(np.array(known), "float64")
    _check_length(node, scales, len(old))
    new: list[Size | None] = [None] * len(old)
    if known is not None:
        new = [_scaled(node, size, scale) for size, scale in zip(old, known, strict=True)]
    open_axes = [i for i, size in enumerate(new) if size is None]
    if open_axes:
        # In float32: see scaled_size.
        lengths = node.emit(relax.op.astype(size_vector(node, [old[i] for i in open_axes]), "float32"))
        factors = [_element(node, scales, i) for i in open_axes]
        narrow = node.emit(relax.op.astype(node.emit(relax.op.concat(factors, 0)), "float32"))
        computed = node.emit(relax.op.astype(relax.op.floor(relax.op.multiply(narrow, lengths)), "int64"))
        for i, size in zip(open_axes, node.run_time_sizes(computed, len(open_axes)), strict=True):
            new[i] = size
    return scales, [size for size in new if size is not None]


def scaled_size(size: int, scale: float) -> int:
    """What an axis of ``size`` is resized to by a ``scale``.

    The product is rounded to float32 before its fraction is dropped, as ONNX Runtime has it: 6 times the float32 next
    to 10/6 is less than 10, and 10 once it is rounded. Who computed the scale as a quotient of sizes gets the size.
    """
    length = float(np.float32(size) * np.float32(scale))
    if not math.isfinite(length):
        raise ConversionError(f"makes an axis of {length} from one of {size}; correct its scales")
    return math.floor(length)


def _scaled(node: Node, size: Size, scale: float) -> Size | None:
    """The size, if it is known when compiling."""
    if isinstance(size, int):
        return scaled_size(size, scale)
    return node.algebra.simplify(size * int(scale)) if is_whole(scale) else None


def _by_sizes(node: Node, old: Sequence[Size], position: int, policy: str) -> tuple[relax.Expr, Sequence[Size]]:
    op, emit = relax.op, node.emit
    known = node.sizes(position)
    wanted = emit(op.astype(node.tensor(position), "int64")) if known is None else size_vector(node, known)
    _check_length(node, wanted, len(old))
    lengths = _as_float64(node, size_vector(node, old))
    scales = emit(op.divide(_as_float64(node, wanted), lengths))
    if policy == "stretch":
        return scales, node.run_time_sizes(wanted, len(old)) if known is None else known
    scale = emit((op.min if policy == "not_larger" else op.max)(scales, [0], True))
    rounded = op.floor(op.add(op.multiply(scale, lengths), scalar(0.5, "float64")))
    new = node.run_time_sizes(emit(op.astype(rounded, "int64")), len(old))
    return emit(op.broadcast_to(scale, [len(old)])), new


def _check_length(node: Node, vector: relax.Expr, count: int) -> None:
    length = vector.struct_info.shape.values[0]
    if not is_number(node.algebra.simplify(length), count):
        raise ConversionError(f"has {length} sizes or scales for {count} axes; give one for each")


def _as_float64(node: Node, tensor: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.astype(tensor, "float64"))


def _element(node: Node, vector: relax.Expr, position: int) -> relax.Expr:
    return node.emit(relax.op.strided_slice(vector, [0], [position], [position + 1]))


def _resampled(node: Node, data: relax.Expr, axis: _Axis, options: Options) -> relax.Expr:
    if options.kind == "nearest":
        chosen = node.builder.emit_te(
            partial(_nearest, options), axis.numbers, axis.old, axis.new, primfunc_name_hint="nearest"
        )
        result = node.emit(relax.op.take(data, chosen, axis.position, mode="clip"))
    elif options.kind in SUPPORT:
        result = _interpolated(node, data, axis, options)
    else:
        raise ConversionError(f"has mode {options.kind!r}; supported are nearest, linear and cubic")
    if options.coordinates != "tf_crop_and_resize":
        return result
    outside = node.builder.emit_te(
        partial(_outside, options), axis.numbers, axis.old, axis.new, primfunc_name_hint="outside"
    )
    along = [axis.new if other == axis.position else 1 for other in range(node.rank(0))]
    mask = node.emit(relax.op.reshape(outside, along))
    return node.emit(relax.op.where(mask, scalar(options.extrapolation, data.struct_info.dtype), result))


def _interpolated(node: Node, data: relax.Expr, axis: _Axis, options: Options) -> relax.Expr:
    """The weighted sum along one axis. A weight of 0 counts nothing, even beside infinity: the axis may not change."""
    taps = _taps(node, axis, options)
    given = (axis.numbers, axis.old, axis.new, taps)
    places = node.builder.emit_te(partial(_places, options), *given, primfunc_name_hint="places")
    raw = node.builder.emit_te(partial(_weights, options), *given, primfunc_name_hint="weights")
    total = node.emit(relax.op.sum(raw, [1], True))
    weights = node.emit(relax.op.astype(relax.op.divide(raw, total), data.struct_info.dtype))

    def compute(source: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, places.shape[1]), name="tap")
        zero = tirx.const(0, source.dtype)
        shape = [places.shape[0] if i == axis.position else size for i, size in enumerate(source.shape)]

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            at = index[axis.position]
            place, weight = [*index], weights(at, tap)
            place[axis.position] = places(at, tap)
            return te.sum(tirx.Select(tirx.EQ(weight, zero), zero, source(*place) * weight), axis=tap)

        return te.compute(shape, element, name="interpolated")

    return node.builder.emit_te(compute, data, places, weights, primfunc_name_hint="interpolate")


def _taps(node: Node, axis: _Axis, options: Options) -> Size:
    """Of how many old elements each new one is made; an axis that shrinks takes more of them to avoid aliasing."""
    support = SUPPORT[options.kind]
    if not options.antialias:
        return 2 * support
    op = relax.op
    scale = op.minimum(_element(node, axis.numbers, 0), scalar(1.0, "float64"))
    reach = op.astype(op.ceil(op.divide(scalar(float(support), "float64"), scale)), "int64")
    (taps,) = node.run_time_sizes(node.emit(op.multiply(reach, scalar(2, "int64"))), 1)
    return taps


# What follows are formulas of ONNX's Resize, in float64; sizes are int64.


def _number(value: float) -> tirx.PrimExpr:
    return tirx.const(value, "float64")


def _float(value: Size) -> tirx.PrimExpr:
    return _number(value) if isinstance(value, int) else value.astype("float64")


def _point(numbers: te.Tensor, at: tirx.Var, old: Size, new: Size, options: Options) -> tirx.PrimExpr:
    """Where a new element lies among the old ones."""
    scale, begin, end = (numbers[i] for i in range(3))
    at, half, one, zero = at.astype("float64"), _number(0.5), _number(1), _number(0)
    width, last = scale * _float(old), _float(old) - one
    centered = (at + half) / scale - half
    match options.coordinates:
        case "half_pixel":
            return centered
        case "pytorch_half_pixel":
            return tirx.Select(_float(new) > one, centered, zero)
        case "half_pixel_symmetric":
            return _float(old) / _number(2) * (one - _float(new) / width) + centered
        case "asymmetric":
            return at / scale
        case "align_corners":
            return tirx.if_then_else(tirx.EQ(width, one), zero, at * last / (width - one))
        case "tf_crop_and_resize":
            inner = begin * last + at * (end - begin) * last / (width - one)
            return tirx.if_then_else(tirx.EQ(width, one), (begin + end) * last / _number(2), inner)
    raise ConversionError(f"has coordinate_transformation_mode {options.coordinates!r}, which is not supported")


def _nearest(options: Options, numbers: te.Tensor, old: Size, new: Size) -> te.Tensor:
    def element(at: tirx.Var) -> tirx.PrimExpr:
        point, half = _point(numbers, at, old, new, options), _number(0.5)
        match options.rounding:
            case "round_prefer_floor":
                rounded = tirx.ceil(point - half)
            case "round_prefer_ceil":
                rounded = tirx.floor(point + half)
            case "ceil":
                rounded = tirx.ceil(point)
            case _:
                rounded = tirx.floor(point)
        return _within(rounded, old)

    return te.compute((new,), element, name="nearest")


def _within(place: tirx.PrimExpr, old: Size) -> tirx.PrimExpr:
    """A place in float64 as an index into an axis; bounded before it is one, as it may be larger than any."""
    last = _float(old) - _number(1)
    return tirx.max(tirx.min(place, last), _number(0)).astype("int64")


def _outside(options: Options, numbers: te.Tensor, old: Size, new: Size) -> te.Tensor:
    def element(at: tirx.Var) -> tirx.PrimExpr:
        point = _point(numbers, at, old, new, options)
        return tirx.any(point < _number(0), point > _float(old) - _number(1))

    return te.compute((new,), element, name="outside")


def _place(point: tirx.PrimExpr, tap: tirx.Var, taps: Size) -> tirx.PrimExpr:
    """The old element that a tap is, as if there were any number of them on either side."""
    reach = _float(taps) / _number(2)
    return tirx.floor(point) + tap.astype("float64") + _number(1) - reach


def _places(options: Options, numbers: te.Tensor, old: Size, new: Size, taps: Size) -> te.Tensor:
    def element(at: tirx.Var, tap: tirx.Var) -> tirx.PrimExpr:
        return _within(_place(_point(numbers, at, old, new, options), tap, taps), old)

    return te.compute((new, taps), element, name="places")


def _weights(options: Options, numbers: te.Tensor, old: Size, new: Size, taps: Size) -> te.Tensor:
    """How much each tap counts, before all of them are divided by their sum."""
    zero, one = _number(0), _number(1)

    def element(at: tirx.Var, tap: tirx.Var) -> tirx.PrimExpr:
        point = _point(numbers, at, old, new, options)
        place = _place(point, tap, taps)
        distance = tirx.abs(point - place)
        if options.antialias:
            distance = distance * tirx.min(numbers[0], one)
        linear = options.kind == "linear"
        weight = tirx.max(one - distance, zero) if linear else _cubic(distance, _number(options.sharpness))
        if not options.exclude_outside:
            return weight
        return tirx.Select(tirx.any(place < zero, place > _float(old) - one), zero, weight)

    return te.compute((new, taps), element, name="weights")


def _cubic(distance: tirx.PrimExpr, a: tirx.PrimExpr) -> tirx.PrimExpr:
    """Cubic convolution: R. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    one, two, three, four, five, eight = (_number(n) for n in (1, 2, 3, 4, 5, 8))
    near = ((a + two) * distance - (a + three)) * distance * distance + one
    far = a * (((distance - five) * distance + eight) * distance - four)
    return tirx.Select(distance <= one, near, tirx.Select(distance < two, far, _number(0)))
