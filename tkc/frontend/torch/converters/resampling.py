"""Images at other sizes: nearest, linear and cubic interpolation along each axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tkc.frontend.grid_sampling import Mode, Padding, emit_sampled
from tkc.frontend.pixels import bounded, extents, reduction
from tkc.frontend.taps import Tap, cubic_weights, total, weighted
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size

_OPAQUE_TO_PRODUCERS = 4  # relax's OpPatternKind.kOutEWiseFusable: what makes the image is not repeated for each tap


@dataclass(frozen=True)
class Axis:
    """An axis of ``old`` elements that gets ``new`` ones; ``factor`` is the scale that the caller gave, if any.

    Coordinates are of ``dtype``: float32, but for images of float64.
    """

    old: Size
    new: Size
    factor: float | None
    align_corners: bool
    dtype: str

    @property
    def step(self) -> tirx.PrimExpr:
        """How many old elements one new one is: by the caller's scale, if there is one, and not by the sizes."""
        one = tirx.const(1, self.dtype)
        if self.align_corners:
            last, size = self.real(self.old - 1), self.real(self.new - 1)
            return tirx.Select(size > 0, last / tirx.max(size, one), tirx.const(0, self.dtype))
        if self.factor is not None and self.factor > 0:
            return tirx.const(float(1.0 / np.float64(self.factor)), self.dtype)
        return self.real(self.old) / self.real(self.new)

    def real(self, value: Size) -> tirx.PrimExpr:
        """A size or an index in the dtype of the coordinates."""
        return tirx.const(value, self.dtype) if isinstance(value, int) else value.astype(self.dtype)

    @property
    def whole_factor(self) -> int | None:
        """The number of new elements of each old one, where it is the same for all."""
        if isinstance(self.old, int) and isinstance(self.new, int):
            whole = self.new % self.old == 0 and self.factor in (None, self.new // self.old)
            return self.new // self.old if whole else None
        if self.factor is not None and self.factor == int(self.factor):
            return int(self.factor)
        return None

    def center(self, index: tirx.PrimExpr) -> tirx.PrimExpr:
        """The coordinate of a new element among the old ones."""
        if self.align_corners:
            return self.real(index) * self.step
        half = tirx.const(0.5, self.dtype)
        return (self.real(index) + half) * self.step - half


def _nearest(axis: Axis, index: tirx.PrimExpr) -> list[Tap]:
    return _single(axis, index, 0.0)


def _nearest_exact(axis: Axis, index: tirx.PrimExpr) -> list[Tap]:
    return _single(axis, index, 0.5)


def _single(axis: Axis, index: tirx.PrimExpr, offset: float) -> list[Tap]:
    one = tirx.const(1, axis.dtype)
    if axis.whole_factor is not None:
        return [(index // axis.whole_factor, one)]
    place = axis.real(index) + tirx.const(offset, axis.dtype) if offset else axis.real(index)
    position = tirx.floor(place * axis.step).astype("int64")
    return [(bounded(position, *extents([axis.old])), one)]


def _linear(axis: Axis, index: tirx.PrimExpr) -> list[Tap]:
    center = tirx.max(axis.center(index), tirx.const(0, axis.dtype))
    (last,) = extents([axis.old - 1])
    left = tirx.min(center.astype("int64"), last)
    fraction = tirx.min(center - left.astype(axis.dtype), tirx.const(1, axis.dtype))
    return [(left, tirx.const(1, axis.dtype) - fraction), (tirx.min(left + 1, last), fraction)]


def _cubic(axis: Axis, index: tirx.PrimExpr) -> list[Tap]:
    center = axis.center(index)
    left = tirx.floor(center)
    positions = [bounded(left.astype("int64") + offset, *extents([axis.old])) for offset in (-1, 0, 1, 2)]
    return list(zip(positions, cubic_weights(center - left), strict=True))


Taps = Callable[[Axis, tirx.PrimExpr], list[Tap]]


def _resampled(image: te.Tensor, first: int, axes: Sequence[Axis], taps: Taps) -> te.Tensor:
    """``image`` resampled along the axes from ``first`` on, in one function of each element."""
    # A symbolic size is a variable of this function's own.
    axes = [
        axis if isinstance(axis.old, int) else replace(axis, old=size)
        for axis, size in zip(axes, list(image.shape)[first : first + len(axes)], strict=True)
    ]
    shape = list(image.shape)
    shape[first : first + len(axes)] = [axis.new for axis in axes]

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        before, after = index[:first], index[first + len(axes) :]
        along = [taps(axis, i) for axis, i in zip(axes, index[first : first + len(axes)], strict=True)]
        terms = [
            (image(*before, *(position for position, _ in chosen), *after), [weight for _, weight in chosen])
            for chosen in itertools.product(*along)
        ]
        if len(terms) == 1:
            return terms[0][0]
        return total(weighted(value, weights) for value, weights in terms)

    return te.compute(extents(shape), element, name="resampled")


def _axes(b: Emitter, x: relax.Expr, factors: Sequence[float | None], align_corners: bool) -> list[Axis]:
    rank = x.struct_info.ndim - 2
    old = [int(size) if isinstance(size, tirx.IntImm) else size for size in list(x.struct_info.shape)[2:]]
    dtype = "float64" if x.struct_info.dtype == "float64" else "float32"
    given = list(factors) if any(factor is not None for factor in factors) else [None] * rank
    return [
        Axis(size, new, None if factor is None else float(factor), align_corners, dtype)
        for size, new, factor in zip(old, b.shape[2:], given, strict=True)
    ]


def _upsample(b: Emitter, x: relax.Expr, factors: Sequence[Any], align_corners: bool, taps: Taps) -> relax.Expr:
    interpolates = taps in (_linear, _cubic)
    if interpolates and "float" not in x.struct_info.dtype:
        raise b.unsupported("interpolation between whole numbers is not supported. Convert the image to float32.")
    wide = b.wide(x) if interpolates else x
    axes = _axes(b, wide, factors, align_corners)
    if taps is not _cubic:
        return b.emit_te("resize", lambda image: _resampled(image, 2, axes, taps), wide)
    for position, axis in enumerate(axes):
        wide = _along(b, wide, 2 + position, axis)
    return wide


def _along(b: Emitter, x: relax.Expr, position: int, axis: Axis) -> relax.Expr:
    compute = lambda image: _resampled(image, position, [axis], _cubic)  # noqa: E731
    return b.emit_te("resize", compute, x, op_pattern=_OPAQUE_TO_PRODUCERS)


def _by_nearest(taps: Taps) -> tuple[Converter, Converter]:
    """The converters of an operator without ``align_corners``: of its overload ``vec``, and of its default one."""

    def vec(b: Emitter, x: relax.Expr, _: Any, factors: list[float] | None) -> relax.Expr:
        return _upsample(b, x, factors or [], False, taps)

    def default(b: Emitter, x: relax.Expr, _: Any, *factors: float | None) -> relax.Expr:
        return _upsample(b, x, factors, False, taps)

    return vec, default


def _by_interpolation(taps: Taps) -> tuple[Converter, Converter]:
    """As :func:`_by_nearest`, with ``align_corners``."""

    def vec(b: Emitter, x: relax.Expr, _: Any, align_corners: bool, factors: list[float] | None) -> relax.Expr:
        return _upsample(b, x, factors or [], align_corners, taps)

    def default(b: Emitter, x: relax.Expr, _: Any, align_corners: bool, *factors: float | None) -> relax.Expr:
        return _upsample(b, x, factors, align_corners, taps)

    return vec, default


def _antialiased(support: int, kernel: Callable[[np.ndarray], np.ndarray]) -> tuple[Converter, Converter]:
    """Interpolation that averages what a smaller image leaves out: the kernel is as wide as a new element.

    ``kernel`` is zero from ``support`` old elements on.
    """

    def upsample(b: Emitter, x: relax.Expr, factors: Sequence[Any], align_corners: bool) -> relax.Expr:
        if "float" not in x.struct_info.dtype:
            raise b.unsupported("interpolation between whole numbers is not supported. Convert the image to float32.")
        out = b.wide(x)
        axes = _axes(b, out, factors, align_corners)
        for position in (3, 2):  # as PyTorch does, columns first
            axis = axes[position - 2]
            if not (isinstance(axis.old, int) and isinstance(axis.new, int)):
                raise b.unsupported(
                    "antialiasing of an image of symbolic size is not supported. Fix its size, or set antialias=False."
                )
            out = _averaged(b, out, position, *_windows(axis, support, kernel))
        return out

    def vec(b: Emitter, x: relax.Expr, _: Any, align_corners: bool, factors: list[float] | None) -> relax.Expr:
        return upsample(b, x, factors or [], align_corners)

    def default(b: Emitter, x: relax.Expr, _: Any, align_corners: bool, *factors: float | None) -> relax.Expr:
        return upsample(b, x, factors, align_corners)

    return vec, default


def _windows(axis: Axis, support: int, kernel: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where each new element's window begins, and its weights: ``[new]`` and ``[new, width]``."""
    assert isinstance(axis.old, int) and isinstance(axis.new, int)
    if axis.align_corners:
        step = (axis.old - 1) / (axis.new - 1) if axis.new > 1 else 0.0
    else:
        step = 1 / axis.factor if axis.factor else axis.old / axis.new
    width = support * max(step, 1.0)
    centers = step * (np.arange(axis.new) + 0.5)
    first = np.maximum((centers - width + 0.5).astype("int64"), 0)
    last = np.minimum((centers + width + 0.5).astype("int64"), axis.old)
    inside = first[:, None] + np.arange(max(int((last - first).max()), 1))
    weights = kernel(np.abs(inside - centers[:, None] + 0.5) / max(step, 1.0))
    weights = np.where(inside < last[:, None], weights, 0)
    total = weights.sum(1, keepdims=True)
    return first, weights / np.where(total == 0, 1, total)


def _averaged(b: Emitter, x: relax.Expr, position: int, first: np.ndarray, weights: np.ndarray) -> relax.Expr:
    """The weighted sums of windows along one axis."""
    new, width = weights.shape

    def sums(image: te.Tensor, starts: te.Tensor, factors: te.Tensor) -> te.Tensor:
        place = reduction(width, "place")

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            i = index[position]
            read = bounded(starts(i) + place.var, image.shape[position])
            return te.sum(image(*index[:position], read, *index[position + 1 :]) * factors(i, place.var), [place])

        shape = [*image.shape[:position], new, *image.shape[position + 1 :]]
        return te.compute(extents(shape), element, name="averaged")

    dtype = x.struct_info.dtype
    return b.emit_te("resize", sums, x, relax.const(first, "int64"), relax.const(weights.astype(dtype), dtype))


def _triangle(distance: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.clip(1 - distance, 0, None)
    return weights


def _antialiased_cubic(distance: np.ndarray) -> np.ndarray:
    """Keys's kernel as image libraries have it, with a = -0.5."""
    a = -0.5
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


def _grid_sampler(
    b: Emitter, x: relax.Expr, grid: relax.Expr, mode: int, padding: int, align_corners: bool
) -> relax.Expr:
    return emit_sampled(b.builder, b.wide(x), b.wide(grid), Mode(mode), Padding(padding), align_corners)


def _both(name: str, converters: tuple[Converter, Converter]) -> dict[str, Converter]:
    return dict(zip((f"aten.{name}.vec", f"aten.{name}.default"), converters, strict=True))


CONVERTERS: dict[str, Converter] = {
    **{k: v for n in (1, 2, 3) for k, v in _both(f"upsample_nearest{n}d", _by_nearest(_nearest)).items()},
    **{k: v for n in (1, 2, 3) for k, v in _both(f"_upsample_nearest_exact{n}d", _by_nearest(_nearest_exact)).items()},
    **_both("upsample_linear1d", _by_interpolation(_linear)),
    **_both("upsample_bilinear2d", _by_interpolation(_linear)),
    **_both("upsample_trilinear3d", _by_interpolation(_linear)),
    **_both("upsample_bicubic2d", _by_interpolation(_cubic)),
    **_both("_upsample_bilinear2d_aa", _antialiased(1, _triangle)),
    **_both("_upsample_bicubic2d_aa", _antialiased(2, _antialiased_cubic)),
    "aten.grid_sampler.default": _grid_sampler,
    "aten.grid_sampler_2d.default": _grid_sampler,
    "aten.grid_sampler_3d.default": _grid_sampler,
}
