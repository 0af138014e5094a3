"""RoiAlign and MaxRoiPool: averages and maxima over the points or pixels of regions of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    require_pixels,
    scalar,
    size_scalar,
    with_inputs,
)
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import bounded, extents, reduction

_FIRST_OPSET_WITH_MODE_OF_PIXELS = 16


@dataclass(frozen=True)
class _Regions:
    """What the attributes say: cells of each region, points of each cell (0 for as many as it has pixels), scale, and
    whether pixels have their coordinates in the middle."""

    cells: Sequence[int]
    points: int
    scale: float
    centered: bool
    inner: str


def _roi_align(node: Node) -> Converted:
    """``data [N, C, H, W]``, ``regions [R, 4]`` and the image of each, ``[R]``; in float32 of narrower floats."""
    mode, dtype = node.attribute("mode", "avg").lower(), node.dtype(0)
    if mode not in ("avg", "max"):
        raise ConversionError(f"has mode {mode!r}; expected avg or max: correct the model")
    default = "output_half_pixel" if node.opset < _FIRST_OPSET_WITH_MODE_OF_PIXELS else "half_pixel"
    regions = _Regions(
        [node.attribute("output_height", 1), node.attribute("output_width", 1)],
        node.attribute("sampling_ratio", 0),
        node.attribute("spatial_scale", 1.0),
        node.attribute("coordinate_transformation_mode", default).lower() == "half_pixel",
        dtype if dtype in EXACT else "float32",
    )
    node.require_shape(1, [node.shape(2)[0], 4])
    _note_images(node, node.tensor(2))
    data, corners = (
        node.tensor(i) if node.dtype(i) == regions.inner else node.emit(relax.op.astype(node.tensor(i), regions.inner))
        for i in range(2)
    )
    begins, steps = _cells(node, regions, corners)
    counts = node.emit(relax.op.ceil(steps)) if regions.points < 1 else None
    most: Sequence[Size] = [regions.points] * 2
    if counts is not None:
        counts = node.emit(relax.op.astype(node.emit(relax.op.maximum(counts, scalar(0, regions.inner))), "int64"))
        most = node.run_time_sizes(node.emit(relax.op.max(counts, [0])), 2)
    operands = (data, begins, steps, node.tensor(2), list(most), *([] if counts is None else [counts]))
    compute = _computation(regions, mode)
    result = node.emit(node.builder.emit_te(compute, *operands, primfunc_name_hint=f"roi_{mode}"))
    if mode == "max":  # of a cell without points
        lowest = scalar(float(tirx.min_value(regions.inner).value), regions.inner)
        result = node.emit(relax.op.where(relax.op.equal(result, lowest), scalar(0, regions.inner), result))
    return result if regions.inner == dtype else relax.op.astype(result, dtype)


def _cells(node: Node, regions: _Regions, corners: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Where each region begins and how large its cells are, ``[R, 2]`` each, of y and x."""
    op, emit, inner = relax.op, node.emit, regions.inner
    scaled = emit(op.multiply(corners, scalar(regions.scale, inner)))
    if regions.centered:
        scaled = emit(op.subtract(scaled, scalar(0.5, inner)))
    first, last = (emit(op.strided_slice(scaled, [1], [i], [i + 2])) for i in (0, 2))
    begins, ends = (emit(op.flip(each, 1)) for each in (first, last))
    sizes = emit(op.subtract(ends, begins))
    if not regions.centered:
        sizes = emit(op.maximum(sizes, scalar(1, inner)))
    return begins, emit(op.divide(sizes, relax.const([float(cell) for cell in regions.cells], inner)))


def _computation(regions: _Regions, mode: str) -> Callable[..., te.Tensor]:
    """The average of the numbers at all points of each cell, of which each is one between four pixels.

    Or the largest of all products of one of these pixels and its weight, as ONNX and ONNX Runtime have it, which is not
    the largest of the numbers at the points.
    """
    inner = regions.inner
    zero, one, half = (tirx.const(value, inner) for value in (0.0, 1.0, 0.5))

    def compute(
        data: te.Tensor,
        begins: te.Tensor,
        steps: te.Tensor,
        images: te.Tensor,
        most: Sequence[Size],
        *counts: te.Tensor,
    ) -> te.Tensor:
        def cell(region: tirx.Var, channel: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
            axes = [reduction(size, f"point{i}") for i, size in enumerate(most)]
            lows, highs, weights, inside, there = [], [], [], [], []
            total = one
            for axis, (index, limit) in enumerate(zip(axes, data.shape[2:], strict=True)):
                grid = counts[0](region, axis) if counts else tirx.const(regions.points, "int64")
                share = (index.var.astype(inner) + half) * steps(region, axis) / grid.astype(inner)
                point = begins(region, axis) + place[axis].astype(inner) * steps(region, axis) + share
                there.append(index.var < grid)
                inside += [point >= -one, point <= limit.astype(inner)]
                point = tirx.min(tirx.max(point, zero), limit.astype(inner) - one)
                low = bounded(tirx.floor(point).astype("int64"), limit)
                lows.append(low)
                highs.append(bounded(low + 1, limit))
                weights.append(point - low.astype(inner))
                total = total * grid.astype(inner)
            image = bounded(images(region).astype("int64"), data.shape[0])
            products = [
                data(image, channel, highs[0] if down else lows[0], highs[1] if right else lows[1])
                * (weights[0] if down else one - weights[0])
                * (weights[1] if right else one - weights[1])
                for down in range(2)
                for right in range(2)
            ]
            if mode == "max":
                largest = tirx.max(tirx.max(products[0], products[1]), tirx.max(products[2], products[3]))
                found = tirx.if_then_else(tirx.all(*inside), largest, zero)
                return te.max(tirx.if_then_else(tirx.all(*there), found, tirx.min_value(inner)), axis=axes)
            mean = (products[0] + products[1] + products[2] + products[3]) / total
            return te.sum(tirx.if_then_else(tirx.all(*inside, *there), mean, zero), axis=axes)

        return te.compute(extents([begins.shape[0], data.shape[1], *regions.cells]), cell, name="regions")

    return compute


def _max_roi_pool(node: Node) -> Converted:
    """``data [N, C, H, W]`` and regions ``[R, 5]``, each the number of its image and its corners."""
    images = node.shape(0)[0]
    node.require_shape(1, [node.shape(1)[0], 5])
    numbers, corners = (
        node.emit(relax.op.strided_slice(node.tensor(1), [1], [start], [end])) for start, end in ((0, 1), (1, 5))
    )
    whole = node.emit(relax.op.astype(numbers, "int64"))  # of NaN, a number that is none of an image
    _note_images(node, whole)
    last = size_scalar(node, node.algebra.simplify(images - 1), "int64")
    within = node.emit(relax.op.minimum(relax.op.maximum(whole, scalar(0, "int64")), last))
    regions = node.emit(relax.op.concat([node.emit(relax.op.astype(within, node.dtype(1))), corners], 1))
    return with_inputs(node, [node.tensor(0), regions]).stock()


def _note_images(node: Node, numbers: relax.Expr) -> None:
    """See to it that there are images with pixels, and that ``numbers`` are theirs."""
    images = node.shape(0)[0]
    node.require_elements(images)
    require_pixels(node)
    node.index_uses.add(numbers, images, wraps=False, source=describe(node.proto))


CONVERTERS: dict[str, Converter] = {"MaxRoiPool": _max_roi_pool, "RoiAlign": _roi_align}
