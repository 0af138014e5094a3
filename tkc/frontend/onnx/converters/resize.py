"""Resize and Upsample: each axis by itself, every new element a weighted sum of a few old ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax, te

from tkc.contracts import OP_PATTERN, OPAQUE_PATTERN
from tkc.frontend.onnx.converters.run_time_resize import SUPPORT, Options, resized, scaled_size
from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    is_number,
    normalized_axis,
    scalar,
    with_inputs,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError

# What the operators did before attributes told it.
_LEGACY = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_FIRST_OPSET_WITH_COORDINATES = 11

# Coordinates that TVM computes as ONNX does, where the scale is a whole number.
_STOCK_COORDINATES = frozenset({"half_pixel", "asymmetric", "pytorch_half_pixel"})


@dataclass(frozen=True)
class Axis:
    """One axis to resize: from ``old`` to ``new`` elements, of which ``scale`` is the exact ratio.

    ``begin`` and ``end`` are the part to show (``tf_crop_and_resize``), as fractions of the axis.
    """

    position: int
    old: int
    new: int
    scale: float
    begin: float = 0.0
    end: float = 1.0


@dataclass(frozen=True)
class Samples:
    """For each new element the old ones it is made of and their weights, as (new, taps); and which lie outside."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


def _resize(node: Node) -> Converted:
    if not all(isinstance(size, int) for size in node.shape(0)) or not _is_constant(node):
        return _resize_at_run_time(node)
    dtype = node.dtype(0)
    nearest = node.attribute("mode", "nearest") == "nearest"
    inner = dtype if nearest or dtype in EXACT else "float32"
    result = node.emit(relax.op.astype(node.tensor(0), inner)) if inner != dtype else node.tensor(0)
    for axis in _axes(node):
        samples = _samples(node, axis)
        result = _resampled(node, result, axis.position, samples)
        if samples.outside.any():
            mask = relax.const(samples.outside.reshape(_along(node, axis.position)), "bool")
            value = scalar(node.attribute("extrapolation_value", 0.0), inner)
            result = node.emit(relax.op.where(mask, value, result))
    return relax.op.astype(result, dtype) if inner != dtype else result


def _resampled(node: Node, data: relax.Expr, axis: int, samples: Samples) -> relax.Expr:
    """The weighted sum along one axis."""
    dtype = data.struct_info.dtype
    if samples.indices.shape[1] == 1:
        return node.emit(relax.op.take(data, relax.const(samples.indices[:, 0], "int64"), axis, mode="clip"))
    terms = []
    for indices, weights in zip(samples.indices.T, samples.weights.T, strict=True):
        taken = relax.op.take(data, relax.const(indices, "int64"), axis, mode="clip")
        factor = relax.const(weights.reshape(_along(node, axis)).astype(dtype), dtype)
        terms.append(node.emit(relax.op.multiply(taken, factor)))
    total = terms[0]
    for term in terms[1:]:
        total = node.emit(relax.op.add(total, term))
    return total


def _along(node: Node, axis: int) -> list[int]:
    return [-1 if other == axis else 1 for other in range(node.rank(0))]


def _axes(node: Node) -> list[Axis]:
    """The axes that change."""
    rank = node.rank(0)
    positions = [normalized_axis(axis, rank) for axis in node.attribute("axes", range(rank))]
    shape: list[Size] = node.shape(0)
    old = np.array([shape[position] for position in positions])
    scales, sizes = _scales(node), _sizes(node)
    if scales is not None:
        new = np.array([scaled_size(size, scale) for size, scale in zip(old.tolist(), scales.tolist(), strict=True)])
    elif sizes is not None:
        scales, new = _fitted(old, sizes, node.attribute("keep_aspect_ratio_policy", "stretch"))
    else:
        raise ConversionError("has neither scales nor sizes; correct the model")
    roi = _roi(node, len(positions))
    axes = [
        Axis(position, int(old[i]), int(new[i]), float(scales[i]), float(roi[i]), float(roi[len(positions) + i]))
        for i, position in enumerate(positions)
    ]
    if any(axis.old == 0 or axis.new == 0 for axis in axes):
        raise ConversionError("resizes an axis without elements; correct the model")
    return [axis for axis in axes if (axis.scale, axis.begin, axis.end) != (1, 0, 1) or axis.old != axis.new]


def _scales(node: Node) -> np.ndarray | None:
    if "scales" in node.attributes:
        return np.array(node.attributes["scales"], "float64")
    scales = node.constant(1 if _is_legacy(node) else 2, "its scales")
    return None if scales is None or not scales.size else scales.astype("float64")


def _sizes(node: Node) -> np.ndarray | None:
    sizes = None if _is_legacy(node) else node.constant(3, "its sizes")
    return None if sizes is None or not sizes.size else sizes


def _roi(node: Node, count: int) -> np.ndarray:
    whole = np.array([0.0] * count + [1.0] * count)
    if _option(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return whole
    roi = node.constant(1, "its region of interest")
    return whole if roi is None or not roi.size else roi.astype("float64")


_MOST_SAMPLES = 1 << 22  # of one axis: where each is taken from, and by what weights, is a part of the compiled model


def _is_legacy(node: Node) -> bool:
    return node.proto.op_type == "Upsample" or node.opset < _FIRST_OPSET_WITH_COORDINATES


def _option(node: Node, name: str, default: str) -> str:
    return _LEGACY[name] if _is_legacy(node) else node.attribute(name, default)


def _fitted(old: np.ndarray, sizes: np.ndarray, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Scales and sizes: as asked for, or with one scale for all axes that keeps within (or beyond) what was asked."""
    scales = sizes / old
    if policy == "stretch":
        return scales, sizes
    scale = scales.min() if policy == "not_larger" else scales.max()
    return np.full(len(old), scale), np.floor(scale * old + 0.5).astype("int64")


def _samples(node: Node, axis: Axis) -> Samples:
    if not 0 <= axis.new <= _MOST_SAMPLES or axis.old > _MOST_SAMPLES:
        raise ConversionError(
            f"makes an axis of {axis.new} from one of {axis.old}; expected up to {_MOST_SAMPLES}: correct its sizes or "
            "scales"
        )
    mode = _option(node, "coordinate_transformation_mode", "half_pixel")
    points = _coordinates(axis, mode)
    outside = np.zeros(axis.new, "bool")
    if mode == "tf_crop_and_resize":
        outside = (points < 0) | (points > axis.old - 1)
    kind = node.attribute("mode", "nearest")
    if kind == "nearest":
        rounded = _ROUNDINGS[_option(node, "nearest_mode", "round_prefer_floor")](points)
        indices, weights = rounded.astype("int64")[:, None], np.ones((axis.new, 1))
    elif kind in SUPPORT:
        scale = min(axis.scale, 1.0) if node.attribute("antialias", 0) else 1.0
        indices, weights = _interpolation(points, kind, scale, node.attribute("cubic_coeff_a", -0.75))
    else:
        raise ConversionError(f"has mode {kind!r}; supported are nearest, linear and cubic")
    if node.attribute("exclude_outside", 0):
        weights = np.where((indices < 0) | (indices >= axis.old), 0, weights)
    weights = weights / weights.sum(1, keepdims=True)
    return Samples(np.clip(indices, 0, axis.old - 1), weights, outside)


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda points: np.ceil(points - 0.5),
    "round_prefer_ceil": lambda points: np.floor(points + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _coordinates(axis: Axis, mode: str) -> np.ndarray:
    """Where each new element lies among the old ones; the formulas stand in ONNX's Resize."""
    new, last, width = np.arange(axis.new), axis.old - 1, axis.scale * axis.old
    centered = (new + 0.5) / axis.scale - 0.5
    match mode:
        case "half_pixel":
            return centered
        case "pytorch_half_pixel":
            return centered if axis.new > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            return axis.old / 2 * (1 - axis.new / width) + centered
        case "asymmetric":
            return new / axis.scale
        case "align_corners":
            return new * last / (width - 1) if width != 1 else np.zeros(axis.new)
        case "tf_crop_and_resize":
            if width == 1:
                return np.full(axis.new, (axis.begin + axis.end) * last / 2)
            return axis.begin * last + new * (axis.end - axis.begin) * last / (width - 1)
    raise ConversionError(f"has coordinate_transformation_mode {mode!r}, which is not supported; use half_pixel")


def _interpolation(points: np.ndarray, kind: str, scale: float, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """The old elements near each point and their weights; a ``scale`` below 1 widens what counts as near."""
    reach = math.ceil(SUPPORT[kind] / scale)
    indices = np.floor(points).astype("int64")[:, None] + np.arange(1 - reach, reach + 1)
    distances = np.abs(points[:, None] - indices) * scale
    return indices, _triangle(distances) if kind == "linear" else _cubic(distances, sharpness)


def _triangle(distances: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.clip(1 - distances, 0, None)
    return weights


def _cubic(distances: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution: R. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = a * (((distances - 5) * distances + 8) * distances - 4)
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0))


def _is_constant(node: Node) -> bool:
    """Whether scales, sizes and the region are known, and none of them is a symbolic size."""
    return all(
        not node.has(position)
        or ((known := node.sizes(position)) is not None and all(isinstance(size, int | float) for size in known))
        for position in ((1,) if _is_legacy(node) else (1, 2, 3))
    )


def _repeats_pixels(node: Node, scales: np.ndarray) -> bool:
    """Whether element ``i`` of the result is ``i // scale`` of the image, on all axes."""
    if node.attribute("mode", "nearest") != "nearest" or (scales != np.floor(scales)).any() or (scales < 1).any():
        return False
    rounding = _option(node, "nearest_mode", "round_prefer_floor")
    match _option(node, "coordinate_transformation_mode", "half_pixel"):
        case "asymmetric":
            return rounding == "floor"
        case "half_pixel":  # (i + 0.5) / scale - 0.5 never lies in the middle between two
            return rounding in ("round_prefer_floor", "round_prefer_ceil")
    return False


def _repeated(factors: Sequence[int], image: te.Tensor) -> te.Tensor:
    # Fused with nothing: TVM does not see that the sizes of a result are those that its reader writes otherwise.
    shape = [size * factor for size, factor in zip(image.shape, factors, strict=True)]
    return te.compute(
        shape, lambda *at: image(*(i if factor == 1 else i // factor for i, factor in zip(at, factors, strict=True)))
    )


def _resize_at_run_time(node: Node) -> Converted:
    """By whole factors pixels are repeated, or TVM's own operators serve an image of symbolic size."""
    _fit_sizes(node)
    coordinates = _option(node, "coordinate_transformation_mode", "half_pixel")
    scales = _scales(node) if _is_constant(node) else None
    special = _is_legacy(node) or "axes" in node.attributes or node.attribute("antialias", 0) or node.has(3)
    if scales is not None and "axes" not in node.attributes and _repeats_pixels(node, scales):
        factors = [int(scale) for scale in scales]
        return node.builder.emit_te(
            partial(_repeated, factors),
            node.tensor(0),
            primfunc_name_hint="repeat_pixels",
            primfunc_attrs={OP_PATTERN: OPAQUE_PATTERN},
        )
    usual = not special and coordinates in _STOCK_COORDINATES
    if usual and scales is not None and (scales == np.floor(scales)).all() and (scales[:2] == 1).all():
        # In whole numbers, so that the sizes are too.
        factors = relax.ShapeExpr([int(scale) for scale in scales])
        return with_inputs(node, [node.tensor(0), relax.const(np.zeros(0), "float32"), factors]).stock()
    options = Options(
        node.attribute("mode", "nearest"),
        coordinates,
        _option(node, "nearest_mode", "round_prefer_floor"),
        bool(node.attribute("antialias", 0)),
        bool(node.attribute("exclude_outside", 0)),
        node.attribute("cubic_coeff_a", -0.75),
        node.attribute("extrapolation_value", 0.0),
        node.attribute("keep_aspect_ratio_policy", "stretch"),
    )
    return resized(node, options, *((1, None) if _is_legacy(node) else (2, 3)))


def _fit_sizes(node: Node) -> None:
    """See to it that no axis without elements is resized to a given size."""
    value = None if _is_legacy(node) else node.value(3)
    if value is None:
        return
    shape = node.shape(0)
    positions = [normalized_axis(axis, len(shape)) for axis in node.attribute("axes", range(len(shape)))]
    given = None if value.known is None else value.known.sizes
    for size, new in zip((shape[axis] for axis in positions), given or [None] * len(positions), strict=False):
        if new is None or not is_number(node.algebra.simplify(size - new), 0):
            node.require_at_least(size, 1)


CONVERTERS: dict[str, Converter] = {
    "Resize": _resize,
    "Upsample": _resize,
}
