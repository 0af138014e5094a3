"""Padding: by a value, and by the pixels of the image itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tkc.frontend.converters.emitter import Converter, Emitter
from tkc.frontend.converters.images import bounded, extents
from tkc.frontend.converters.shapes import constant_pad
from tkc.frontend.converters.symbols import Size

Source = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]
"""From a position, which may be outside of an axis, and the axis's size to the position that is read there."""


def _mirrored(position: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    last = size - 1
    return bounded(last - tirx.abs(last - tirx.abs(position)), size)


_SOURCES: dict[str, Source] = {
    "reflect": _mirrored,
    "replicate": bounded,
    "circular": tirx.floormod,
}


def pad(b: Emitter, x: relax.Expr, widths: list[Size], mode: str = "constant", value: Any = None) -> relax.Expr:
    """``x`` with ``widths`` of padding, two for each axis from the last one on; negative ones cut off."""
    if mode == "constant":
        return constant_pad(b, x, widths, 0 if value is None else value)
    return _padded(b, x, widths, _SOURCES[mode])


def _padded(b: Emitter, x: relax.Expr, widths: list[Size], source: Source) -> relax.Expr:
    """``x`` with pixels of its own around it."""
    padded = len(widths) // 2
    before = widths[::2][::-1]
    shape = b.shape

    def compute(image: te.Tensor) -> te.Tensor:
        sizes = list(image.shape)[-padded:]

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            axes = zip(index[-padded:], before, sizes, strict=True)
            return image(*index[:-padded], *(source(at - width, size) for at, width, size in axes))

        return te.compute(extents(shape), element, name="padded")

    return b.emit_te("pad", compute, x)


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
