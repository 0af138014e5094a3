"""Padding: by a value, and by the pixels of the image itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tkc.frontend.pixels import bounded, extents
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.shapes import constant_pad
from tkc.frontend.torch.converters.symbols import Size

Source = Callable[[tirx.PrimExpr, tirx.PrimExpr, Size, Size], tirx.PrimExpr]
"""From a position, which may be outside of an axis, the axis's size, and how much negative padding cuts off in front
and behind, to the position that is read there."""


def _mirrored(position: tirx.PrimExpr, size: tirx.PrimExpr, *_: Size) -> tirx.PrimExpr:
    last = size - 1
    return bounded(last - tirx.abs(last - tirx.abs(position)), size)


def _nearest(position: tirx.PrimExpr, size: tirx.PrimExpr, *_: Size) -> tirx.PrimExpr:
    return bounded(position, size)


def _wrapped(position: tirx.PrimExpr, size: tirx.PrimExpr, front: Size, behind: Size) -> tirx.PrimExpr:
    # Nothing reads an empty axis, but its size is divided by.
    kept = tirx.max(size - front - behind, tirx.const(1, "int64"))
    return front + tirx.floormod(position - front, kept)


_SOURCES: dict[str, Source] = {
    "reflect": _mirrored,
    "replicate": _nearest,
    "circular": _wrapped,
}


def pad(b: Emitter, x: relax.Expr, widths: list[Size], mode: str = "constant", value: Any = None) -> relax.Expr:
    """``x`` with ``widths`` of padding, two for each axis from the last one on; negative ones cut off."""
    if mode == "constant":
        return constant_pad(b, x, widths, 0 if value is None else value)
    return _padded(b, x, widths, _SOURCES[mode])


def _padded(b: Emitter, x: relax.Expr, widths: list[Size], source: Source) -> relax.Expr:
    """``x`` with pixels of its own around it."""
    padded = len(widths) // 2
    before, after = widths[::2][::-1], widths[1::2][::-1]
    shape = b.shape
    if source is _wrapped:
        for size, first, last in zip(list(x.struct_info.shape)[-padded:], before, after, strict=True):
            kept = b.simplified(size - _cut(first) - _cut(last))
            if any(isinstance(more, int | tirx.IntImm) and int(more) > 0 for more in (first - kept, last - kept)):
                raise b.unsupported("circular padding wider than what negative padding leaves has no defined result.")

    def compute(image: te.Tensor) -> te.Tensor:
        sizes = list(image.shape)[-padded:]

        def place(at: tirx.Var, size: tirx.PrimExpr, first: Size, last: Size) -> tirx.PrimExpr:
            return source(at - first, size, _cut(first), _cut(last))

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            axes = zip(index[-padded:], sizes, before, after, strict=True)
            return image(*index[:-padded], *(place(*axis) for axis in axes))

        return te.compute(extents(shape), element, name="padded")

    return b.emit_te("pad", compute, x)


def _cut(width: Size) -> Size:
    """How much a width of padding cuts off."""
    return max(-width, 0) if isinstance(width, int) else tirx.max(-width, tirx.const(0, "int64"))


def _by(mode: str) -> Converter:
    def convert(b: Emitter, x: relax.Expr, widths: list[Size]) -> relax.Expr:
        return _padded(b, x, widths, _SOURCES[mode])

    return convert


CONVERTERS: dict[str, Converter] = {
    "aten.pad.default": pad,
    "aten._pad_circular.default": _by("circular"),
    **{f"aten.reflection_pad{rank}d.default": _by("reflect") for rank in (1, 2, 3)},
    **{f"aten.replication_pad{rank}d.default": _by("replicate") for rank in (1, 2, 3)},
}
