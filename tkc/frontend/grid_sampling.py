"""Images at the points of a grid (PyTorch's ``grid_sample``, ONNX's GridSample)."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass

from tvm import te, tirx

from tkc.frontend.pixels import bounded, extents, within
from tkc.frontend.taps import Tap, cubic_weights, total, weighted


class Mode(enum.IntEnum):
    """What stands between pixels, numbered as PyTorch does."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2


class Padding(enum.IntEnum):
    """What stands outside of an image, numbered as PyTorch does."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


@dataclass(frozen=True)
class _GridAxis:
    """An axis of ``size`` pixels that a grid's coordinates, -1 to 1, point into."""

    size: tirx.PrimExpr
    padding: Padding
    align_corners: bool

    def pixel(self, coordinate: tirx.PrimExpr) -> tirx.PrimExpr:
        """A grid's coordinate in pixels."""
        size = self.size.astype(coordinate.dtype)
        if self.align_corners:
            return (coordinate + 1) / 2 * (size - 1)
        return ((coordinate + 1) * size - 1) / 2

    def padded(self, pixel: tirx.PrimExpr) -> tirx.PrimExpr:
        """The pixel that stands for one outside of the image; with zeros, itself."""
        if self.padding == Padding.ZEROS:
            return pixel
        if self.padding == Padding.REFLECTION:
            pixel = self._reflected(pixel)
        last = self.size.astype(pixel.dtype) - 1
        # A comparison with NaN is false: it becomes the first pixel, as PyTorch has it.
        return tirx.min(tirx.Select(pixel > 0, pixel, tirx.const(0, pixel.dtype)), last)

    def _reflected(self, pixel: tirx.PrimExpr) -> tirx.PrimExpr:
        """Mirrored at the centers of the outermost pixels, or at their borders, as often as it takes."""
        low = tirx.const(0 if self.align_corners else -0.5, pixel.dtype)
        span = self.size.astype(pixel.dtype) - (1 if self.align_corners else 0)
        distance = tirx.abs(pixel - low)
        length = tirx.max(span, tirx.const(1, pixel.dtype))
        turns = tirx.floor(distance / length)
        extra = distance - turns * length
        is_even = tirx.floor(turns / 2) * 2 == turns
        mirrored = tirx.Select(is_even, extra, length - extra) + low
        return tirx.Select(span > 0, mirrored, tirx.const(0, pixel.dtype))

    def index(self, pixel: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """The index of a whole pixel, and whether it is inside of the image.

        Floating-point numbers that no integer holds, and NaN, are brought near the image first, outside of it.
        """
        end = self.size.astype(pixel.dtype)
        near = tirx.Select(pixel >= 0, tirx.min(pixel, end), tirx.const(-1, pixel.dtype))
        index = near.astype("int64")
        return bounded(index, self.size), within(index, self.size)


def sampled(image: te.Tensor, grid: te.Tensor, mode: Mode, padding: Padding, align_corners: bool) -> te.Tensor:
    """``image [batch, channels, ...]`` at the points ``grid [batch, ..., axes]``, whose last axis counts from the last
    axis of the image, as ``[batch, channels, ...]``."""
    batch, channels, *sizes = image.shape
    axes = [_GridAxis(size, padding, align_corners) for size in sizes]

    def element(item: tirx.Var, channel: tirx.Var, *point: tirx.Var) -> tirx.PrimExpr:
        coordinates = [grid(item, *point, len(axes) - 1 - i) for i in range(len(axes))]
        pixels = [axis.pixel(coordinate) for axis, coordinate in zip(axes, coordinates, strict=True)]
        along = [_grid_taps(axis, pixel, mode) for axis, pixel in zip(axes, pixels, strict=True)]
        terms = []
        for chosen in itertools.product(*along):
            found = [axis.index(pixel) for axis, (pixel, _) in zip(axes, chosen, strict=True)]
            inside = tirx.all(*(inside for _, inside in found))
            # No Select, by whose condition TVM would simplify the index that it loads from in any case. Zeros are
            # weighted too, as PyTorch does on the CPU: the weights of a coordinate that is none are NaN.
            read = image(item, channel, *(index for index, _ in found))
            value = tirx.if_then_else(inside, read, tirx.const(0, read.dtype))
            terms.append(value if mode == Mode.NEAREST else weighted(value, [weight for _, weight in chosen]))
        return total(terms)

    return te.compute(extents([batch, channels, *grid.shape[1:-1]]), element, name="sampled")


def _grid_taps(axis: _GridAxis, pixel: tirx.PrimExpr, mode: Mode) -> list[Tap]:
    """Whole pixels around a point, and their weights."""
    one = tirx.const(1, pixel.dtype)
    if mode == Mode.CUBIC:  # pads each of the pixels that it reads
        left = tirx.floor(pixel)
        weights = cubic_weights(pixel - left)
        return [(axis.padded(left + offset), weight) for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)]
    pixel = axis.padded(pixel)
    if mode == Mode.NEAREST:
        return [(tirx.nearbyint(pixel), one)]
    left = tirx.floor(pixel)
    return [(left, left + one - pixel), (left + one, pixel - left)]
