"""Operators that rearrange pixels: windows as columns and back, channels as neighbouring pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from tkc.frontend.pixels import extents, read_within, reduction
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.images import batched, for_each_axis, unbatched
from tkc.frontend.torch.converters.symbols import Size


def im2col(b: Emitter, x: relax.Expr, kernel: Any, dilation: Any, padding: Any, stride: Any) -> relax.Expr:
    """The windows of ``x [batch, channels, rows, columns]`` as ``[batch, channels * window, windows]``."""
    kernel, dilation, padding, stride = (for_each_axis(values, 2) for values in (kernel, dilation, padding, stride))
    image = batched(b, x, 2)
    sizes = list(image.struct_info.shape)[2:]
    counts = _counts(sizes, kernel, dilation, padding, stride)

    def columns(image: te.Tensor) -> te.Tensor:
        batch, channels = image.shape[:2]

        def element(item: tirx.Var, row: tirx.Var, window: tirx.Var) -> tirx.PrimExpr:
            outputs = (window // counts[1], window % counts[1])
            inside = (row // kernel[1] % kernel[0], row % kernel[1])
            axes = zip(outputs, inside, stride, dilation, padding, strict=True)
            where = [output * step + place * apart - before for output, place, step, apart, before in axes]
            channel = row // (kernel[0] * kernel[1])
            zero = tirx.const(0, image.dtype)
            return read_within(lambda at: image(item, channel, *at), where, image.shape[2:], zero)

        return te.compute(extents([batch, channels * kernel[0] * kernel[1], counts[0] * counts[1]]), element)

    return unbatched(b, b.emit_te("im2col", columns, image))


def _counts(
    sizes: list[Size], kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> list[Size]:
    """How many windows there are along each axis."""
    axes = zip(sizes, kernel, dilation, padding, stride, strict=True)
    return [(size + 2 * pad - apart * (extent - 1) - 1) // step + 1 for size, extent, apart, pad, step in axes]


def col2im(b: Emitter, x: relax.Expr, _: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> relax.Expr:
    """The image whose windows are ``x [batch, channels * window, windows]``; where they overlap, their sum."""
    kernel, dilation, padding, stride = (for_each_axis(values, 2) for values in (kernel, dilation, padding, stride))
    wide = b.wide(x if x.struct_info.ndim == 3 else b.emit(op.expand_dims(x, 0)))
    sizes = b.shape[-2:]
    counts = _counts(sizes, kernel, dilation, padding, stride)

    def image(columns: te.Tensor) -> te.Tensor:
        axes = [_windows_over(*each) for each in zip(kernel, dilation, padding, stride, strict=True)]

        def element(item: tirx.Var, channel: tirx.Var, *pixel: tirx.Var) -> tirx.PrimExpr:
            found = [at(position) for (_, at), position in zip(axes, pixel, strict=True)]
            windows, inside, conditions = zip(*found, strict=True)
            zero = tirx.const(0, columns.dtype)
            counted, extent = extents(counts), extents(kernel)

            def read(at: Any) -> tirx.PrimExpr:
                row = (channel * kernel[0] + at[2]) * kernel[1] + at[3]
                return columns(item, row, at[0] * counted[1] + at[1])

            return te.sum(
                read_within(read, [*windows, *inside], [*counted, *extent], zero, *conditions),
                [windows for windows, _ in axes],
            )

        return te.compute(
            extents([columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1]), *sizes]), element, name="image"
        )

    return unbatched(b, b.emit_te("col2im", image, wide))


_Window = Callable[[tirx.Var], tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr]]


def _windows_over(extent: int, apart: int, before: int, step: int) -> tuple[tirx.IterVar, _Window]:
    """An axis of the windows that may have a position; and of a position the window, its place inside, and whether the
    window has it."""
    if apart > 1:
        inside = reduction(extent, "inside")

        def by_places(position: tirx.Var) -> tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr]:
            offset = position + before - inside.var * apart
            return tirx.floordiv(offset, step), inside.var, offset % step == 0

        return inside, by_places
    # Among the places of a long window, only each ``step``-th is where a window has the position.
    later = reduction(-(-extent // step), "window")

    def by_windows(position: tirx.Var) -> tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr]:
        offset = position + before
        place = offset % step + later.var * step
        return tirx.floordiv(offset, step) - later.var, place, place < extent

    return later, by_windows


def pixel_shuffle(b: Emitter, x: relax.Expr, factor: int) -> relax.Expr:
    """``[..., channels * factor², rows, columns]`` as ``[..., channels, rows * factor, columns * factor]``."""
    *leading, channels, rows, columns = b.shape
    lead = len(leading) + 1
    split = b.emit(b.reshape(x, [*leading, channels, factor, factor, rows // factor, columns // factor]))
    order = [*range(lead), lead + 2, lead, lead + 3, lead + 1]
    return b.reshape(b.emit(op.permute_dims(split, order)), b.shape)


def pixel_unshuffle(b: Emitter, x: relax.Expr, factor: int) -> relax.Expr:
    """``[..., channels, rows * factor, columns * factor]`` as ``[..., channels * factor², rows, columns]``."""
    *leading, channels, rows, columns = b.shape
    lead = len(leading) + 1
    split = b.emit(b.reshape(x, [*leading, channels // factor**2, rows, factor, columns, factor]))
    order = [*range(lead), lead + 1, lead + 3, lead, lead + 2]
    return b.reshape(b.emit(op.permute_dims(split, order)), b.shape)


def channel_shuffle(b: Emitter, x: relax.Expr, groups: Size) -> relax.Expr:
    """``[batch, groups * channels, ...]`` with the channels of each group in turns."""
    batch, channels, *sizes = b.shape
    split = b.emit(b.reshape(x, [batch, groups, channels // groups, *sizes]))
    order = [0, 2, 1, *range(3, len(b.shape) + 1)]
    return b.reshape(b.emit(op.permute_dims(split, order)), b.shape)


def _empty_or(converter: Converter) -> Converter:
    """``converter``, but for results without elements: Relax's reshape reads a size of 0 as "as before"."""

    def convert(b: Emitter, *arguments: Any) -> relax.Expr:
        if any(isinstance(size, int) and size == 0 for size in b.shape):
            return op.zeros(b.shape, b.dtype)
        return converter(b, *arguments)

    return convert


CONVERTERS: dict[str, Converter] = {
    "aten.im2col.default": im2col,
    "aten.col2im.default": col2im,
    "aten.pixel_shuffle.default": _empty_or(pixel_shuffle),
    "aten.pixel_unshuffle.default": _empty_or(pixel_unshuffle),
    "aten.channel_shuffle.default": _empty_or(channel_shuffle),
    "aten.native_channel_shuffle.default": _empty_or(channel_shuffle),
}
