"""Images at the points of a grid (PyTorch's ``grid_sample``, ONNX's GridSample)."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from tkc.contracts import OP_PATTERN, OPAQUE_PATTERN
from tkc.frontend.pixels import bounded, extents, within
from tkc.frontend.taps import Tap, cubic_weights, total, weighted

_CUBIC_TAPS = 4


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


def emit_sampled(
    builder: relax.BlockBuilder, image: relax.Expr, grid: relax.Expr, mode: Mode, padding: Padding, align_corners: bool
) -> relax.Var:
    """``image [batch, channels, ...]`` at the points ``grid [batch, ..., axes]``, whose last axis counts from the last
    axis of the image, as ``[batch, channels, ...]``."""

    def axes(image: te.Tensor) -> list[_GridAxis]:
        return [_GridAxis(size, padding, align_corners) for size in image.shape[2:]]

    # Once for all channels, in a function of its own: sixteen taps with their places and weights in one expression take
    # half a minute to compile, and eight with three reflections in each three times as long.
    def of_taps(name: str, compute: Callable[[Sequence[_GridAxis], te.Tensor], te.Tensor]) -> relax.Var:
        return builder.emit_te(
            lambda image, grid: compute(axes(image), grid),
            image,
            grid,
            primfunc_name_hint=name,
            primfunc_attrs={OP_PATTERN: OPAQUE_PATTERN},
        )

    if mode != Mode.CUBIC:
        reflected = padding == Padding.REFLECTION
        points = of_taps("grid_points", _reflected_points) if reflected else grid

        def sampled(image: te.Tensor, points: te.Tensor) -> te.Tensor:
            return _sampled(axes(image), image, points, mode, reflected)

        return builder.emit_te(sampled, image, points, primfunc_name_hint="grid_sample")
    places, weights = of_taps("grid_places", _cubic_places), of_taps("grid_weights", _cubic_weights)
    return builder.emit_te(_cubic, image, places, weights, primfunc_name_hint="grid_sample")


def _reflected_points(axes: Sequence[_GridAxis], grid: te.Tensor) -> te.Tensor:
    """Where each point is inside of the image, in pixels, by the numbers of its axes."""

    def element(item: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
        *point, which = place
        # One formula for all axes: of three in one expression the compilation takes several times as long.
        axis = dataclasses.replace(axes[0], size=_chosen(which, [axis.size for axis in axes]))
        return axis.padded(axis.pixel(grid(item, *point, len(axes) - 1 - which)))

    return te.compute(extents([*grid.shape[:-1], len(axes)]), element, name="points")


def _sampled(
    axes: Sequence[_GridAxis], image: te.Tensor, grid: te.Tensor, mode: Mode, are_reflected: bool
) -> te.Tensor:
    """The image at the points of ``grid``, which has them in pixels if they ``are_reflected``."""

    def element(item: tirx.Var, channel: tirx.Var, *point: tirx.Var) -> tirx.PrimExpr:
        if are_reflected:
            pixels = [grid(item, *point, number) for number in range(len(axes))]
        else:
            pixels = [axis.padded(at) for axis, at in zip(axes, _pixels(axes, grid, item, point), strict=True)]
        along = [_grid_taps(pixel, mode) for pixel in pixels]
        terms = []
        for chosen in itertools.product(*along):
            found = [axis.index(pixel) for axis, (pixel, _) in zip(axes, chosen, strict=True)]
            inside = tirx.all(*(inside for _, inside in found))
            value = _read_if(inside, image, [item, channel, *(index for index, _ in found)])
            terms.append(value if mode == Mode.NEAREST else weighted(value, [weight for _, weight in chosen]))
        return total(terms)

    return te.compute(extents([*image.shape[:2], *grid.shape[1:-1]]), element, name="sampled")


def _cubic_places(axes: Sequence[_GridAxis], grid: te.Tensor) -> te.Tensor:
    """The four pixels around each point along each axis, ``[batch, ..., axes, 4]``; -1 outside of the image."""

    def element(item: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
        *point, which, tap = place

        def along(axis: _GridAxis, pixel: tirx.PrimExpr) -> tirx.PrimExpr:
            index, inside = axis.index(axis.padded(tirx.floor(pixel) + (tap - 1).astype(pixel.dtype)))
            return tirx.Select(inside, index, tirx.const(-1, index.dtype))

        return _chosen(which, [along(*each) for each in zip(axes, _pixels(axes, grid, item, point), strict=True)])

    return te.compute(extents([*grid.shape[:-1], len(axes), _CUBIC_TAPS]), element, name="places")


def _cubic_weights(axes: Sequence[_GridAxis], grid: te.Tensor) -> te.Tensor:
    """Their weights, in the same shape."""

    def element(item: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
        *point, which, tap = place
        pixel = _chosen(which, _pixels(axes, grid, item, point))
        return _chosen(tap, cubic_weights(pixel - tirx.floor(pixel)))

    return te.compute(extents([*grid.shape[:-1], len(axes), _CUBIC_TAPS]), element, name="weights")


def _cubic(image: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """The sums of pixels at ``places`` times their ``weights``."""
    count = len(image.shape) - 2

    def element(item: tirx.Var, channel: tirx.Var, *point: tirx.Var) -> tirx.PrimExpr:
        terms = []
        for taps in itertools.product(range(_CUBIC_TAPS), repeat=count):
            found = [places(item, *point, axis, tap) for axis, tap in enumerate(taps)]
            near = [bounded(index, size) for index, size in zip(found, image.shape[2:], strict=True)]
            value = _read_if(tirx.all(*(index >= 0 for index in found)), image, [item, channel, *near])
            terms.append(weighted(value, [weights(item, *point, axis, tap) for axis, tap in enumerate(taps)]))
        return total(terms)

    return te.compute(extents([*image.shape[:2], *places.shape[1:-2]]), element, name="sampled")


def _pixels(
    axes: Sequence[_GridAxis], grid: te.Tensor, item: tirx.Var, point: Sequence[tirx.Var]
) -> list[tirx.PrimExpr]:
    """Where a point of the grid is along each axis."""
    return [axis.pixel(grid(item, *point, len(axes) - 1 - number)) for number, axis in enumerate(axes)]


def _chosen(number: tirx.Var, values: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """That of ``values`` which has ``number``."""
    *others, chosen = values
    for place, value in reversed(list(enumerate(others))):
        chosen = tirx.Select(number == place, value, chosen)
    return chosen


def _read_if(inside: tirx.PrimExpr, image: te.Tensor, index: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """An element, or 0 outside of the image.

    No Select, by whose condition TVM would simplify the index that it loads from in any case. Zeros are weighted too,
    as PyTorch does on the CPU: the weights of a coordinate that is none are NaN.
    """
    read = image(*index)
    return tirx.if_then_else(inside, read, tirx.const(0, read.dtype))


def _grid_taps(pixel: tirx.PrimExpr, mode: Mode) -> list[Tap]:
    """Whole pixels around a point, and their weights."""
    one = tirx.const(1, pixel.dtype)
    if mode == Mode.NEAREST:
        return [(tirx.nearbyint(pixel), one)]
    left = tirx.floor(pixel)
    return [(left, left + one - pixel), (left + one, pixel - left)]
