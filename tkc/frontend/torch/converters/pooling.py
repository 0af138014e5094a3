"""Pooling: maxima and averages of windows, their positions, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from tkc.frontend.pixels import Index, extents, read_within, reduction
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.images import batched, for_each_axis, unbatched
from tkc.frontend.torch.converters.symbols import Size

_MAX_POOL = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
_AVG_POOL = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}

_LARGE_WINDOW = 64
"""Windows of more elements along an axis of unknown size are taken to be larger than the image."""

Positions = Callable[[Index, Index], list[tirx.PrimExpr]]
"""From an output and a place in its window (an index for each axis) to the position in the image."""


@dataclass(frozen=True)
class Windows:
    """Windows over the last axes of an image of ``sizes``; ``counts`` are how many PyTorch has of them."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    sizes: list[Size]
    counts: list[Size]

    def positions(self, outputs: Index, inside: Index) -> list[tirx.PrimExpr]:
        """Where the window of an output reads, which may be outside of the image."""
        axes = zip(outputs, inside, self.stride, self.dilation, self.padding, strict=True)
        return [output * stride + place * step - padding for output, place, stride, step, padding in axes]

    def missing(self, axis: int) -> Size:
        """By how much the last window exceeds the image and the padding in front of it."""
        end = (self.counts[axis] - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return end - self.sizes[axis] - self.padding[axis]

    def no_larger_than_image(self) -> Windows:
        """The same maxima by smaller windows, along axes of which the only window covers all the image."""
        kernel, stride, padding = list(self.kernel), list(self.stride), list(self.padding)
        for axis, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            end = kernel[axis] - padding[axis]
            if isinstance(size, int) and count == 1 and self.dilation[axis] == 1 and end >= size > 0:
                kernel[axis], stride[axis], padding[axis] = size, 1, 0
        return Windows(kernel, stride, padding, self.dilation, self.sizes, self.counts)


def _windows(
    b: Emitter, x: relax.Expr, kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int, shape: list[Size]
) -> Windows:
    sizes = [int(size) if isinstance(size, tirx.IntImm) else size for size in list(x.struct_info.shape)[-rank:]]
    kernel = for_each_axis(kernel, rank)
    # An empty stride is the kernel's size.
    stride = for_each_axis(stride, rank) if stride not in (None, []) else kernel
    padding, dilation = for_each_axis(padding, rank), for_each_axis(dilation, rank)
    return Windows(kernel, stride, padding, dilation, sizes, shape[-rank:])


def _results(b: Emitter) -> list[Any]:
    value = b.node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _max_pool(rank: int, with_indices: bool) -> Converter:
    """The largest element of each window (NaN if there is one), and its position among the image's pixels."""

    def convert(
        b: Emitter,
        x: relax.Expr,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        shape = b.sizes(_results(b)[0].shape)
        windows = _windows(b, x, kernel, stride, padding, dilation, rank, shape).no_larger_than_image()
        largest = _largest(b, x, windows, ceil_mode, shape)
        if not with_indices:
            return largest
        found = _found(b, b.wide(x), b.wide(largest), lambda _: (windows.kernel, windows.positions), shape)
        return [largest, found]

    return convert


def _largest(b: Emitter, x: relax.Expr, windows: Windows, ceil_mode: bool, shape: list[Size]) -> relax.Expr:
    rank = len(windows.kernel)
    before, after = windows.padding, list(windows.padding)
    if ceil_mode:
        # What Relax calls so counts windows that begin in the padding. As much padding as they need, and maybe more.
        needed = [windows.missing(axis) for axis in range(rank)]
        static = [isinstance(n, int) for n in needed]
        after = [
            max(n, 0) if known else padding + stride - 1
            for n, known, padding, stride in zip(needed, static, windows.padding, windows.stride, strict=True)
        ]
    options = (windows.kernel, windows.stride, [*before, *after], windows.dilation)
    out = b.emit(_MAX_POOL[rank](batched(b, x, rank), *options))
    if ceil_mode and not all(static):
        axes = list(range(out.struct_info.ndim - rank, out.struct_info.ndim))
        out = b.emit(op.strided_slice(out, axes, [0] * rank, windows.counts, assume_inbound=True))
    return out if out.struct_info.ndim == len(shape) else b.emit(op.squeeze(out, [0]))


def _found(
    b: Emitter,
    x: relax.Expr,
    largest: relax.Expr,
    windows: Callable[[te.Tensor], tuple[Sequence[Size], Positions]],
    shape: list[Size],
) -> relax.Expr:
    """The position of the largest element of each window: the first of equal ones, the last of several NaNs.

    ``windows`` gives the extents of windows of an image, and where they read.
    """

    def places(image: te.Tensor, most: te.Tensor) -> te.Tensor:
        kernel, positions = windows(image)
        rank = len(kernel)
        sizes = list(image.shape)[-rank:]
        inside = [reduction(extent, "inside") for extent in kernel]

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            where = positions(index[-rank:], [axis.var for axis in inside])
            flat: tirx.PrimExpr = tirx.const(0, "int64")
            for position, size in zip(where, sizes, strict=True):
                flat = flat * size + position
            none = tirx.max_value("int64")

            def key(at: Index) -> tirx.PrimExpr:
                value = image(*index[:-rank], *at)
                is_largest = tirx.Select(value == most(*index), flat, none)
                # Below all positions, and the last one the lowest.
                return tirx.Select(tirx.isnan(value), -1 - flat, is_largest) if _is_real(x) else is_largest

            return te.min(read_within(key, where, sizes, none), inside)

        lowest = te.compute(extents(shape), element, name="places")
        return te.compute(
            lowest.shape, lambda *index: tirx.Select(lowest(*index) < 0, -1 - lowest(*index), lowest(*index))
        )

    return b.emit_te("max_pool_indices", places, x, largest)


def _is_real(x: relax.Expr) -> bool:
    return "float" in x.struct_info.dtype


def _avg_pool(rank: int) -> Converter:
    """The sum of each window divided by how many elements it has, or by ``divisor``."""

    def convert(
        b: Emitter,
        x: relax.Expr,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> relax.Expr:
        windows = _windows(b, x, kernel, stride, padding, 1, rank, b.shape)
        whole = not ceil_mode or all(isinstance(n, int) and n <= 0 for n in map(windows.missing, range(rank)))
        if whole and divisor is None and _is_real(x) and (count_include_pad or not any(windows.padding)):
            padded = [*windows.padding, *windows.padding]
            options = (windows.kernel, windows.stride, padded, [1] * rank)
            pooled = _AVG_POOL[rank](batched(b, b.wide(x), rank), *options, False, True)
            return unbatched(b, b.emit(pooled))
        return b.emit_te("avg_pool", lambda image: _averages(image, windows, count_include_pad, divisor), b.wide(x))

    return convert


def _averages(image: te.Tensor, windows: Windows, with_padding: bool, divisor: int | None) -> te.Tensor:
    rank = len(windows.kernel)
    leading, sizes = list(image.shape)[:-rank], list(image.shape)[-rank:]
    # A window may be far larger than the image (EfficientNet's pooler, 2560 x 2560 of 7 x 7): then all the image is
    # looked at, and not all the window.
    clipped = [_is_larger(extent, size) for extent, size in zip(windows.kernel, sizes, strict=True)]
    looked_at = [size if clip else extent for extent, size, clip in zip(windows.kernel, sizes, clipped, strict=True)]
    inside = [reduction(extent, "inside") for extent in looked_at]
    zero = tirx.const(0, image.dtype)

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        places = [axis.var for axis in inside]
        where, within = list(windows.positions(index[-rank:], places)), []
        for axis, start in enumerate(windows.positions(index[-rank:], [0] * rank)):
            if clipped[axis]:
                where[axis] = places[axis]
                within += [start <= places[axis], places[axis] < start + windows.kernel[axis]]
        return te.sum(read_within(lambda at: image(*index[:-rank], *at), where, sizes, zero, *within), inside)

    sums = te.compute(extents([*leading, *windows.counts]), element, name="sums")

    def count(outputs: Index) -> tirx.PrimExpr:
        if divisor is not None:
            return tirx.const(divisor, "int64")
        total: tirx.PrimExpr = tirx.const(1, "int64")
        zeros = [0] * rank
        starts = windows.positions(outputs, zeros)
        for start, size, extent, padding in zip(starts, sizes, windows.kernel, windows.padding, strict=True):
            margin = padding if with_padding else 0
            end = tirx.min(start + extent, size + margin)
            total = total * (end - tirx.max(start, tirx.const(-margin, "int64")))
        return total

    return te.compute(sums.shape, lambda *index: _divided(sums(*index), count(index[-rank:])), name="averages")


def _is_larger(extent: int, size: tirx.PrimExpr) -> bool:
    """Whether a window is larger than the image, or, where that has no size yet, so large that few images are."""
    return extent > (int(size) if isinstance(size, tirx.IntImm) else _LARGE_WINDOW)


def _divided(total: tirx.PrimExpr, count: tirx.PrimExpr) -> tirx.PrimExpr:
    count = count.astype(total.dtype)
    return total / count if "float" in total.dtype else tirx.truncdiv(total, count)


def _adaptive_windows(sizes: list[Size], counts: list[Size]) -> tuple[list[Size], Positions]:
    """Windows that share an image evenly: how many elements one has at most, and where output ``i`` of ``n`` begins,
    at ``i * size // n``."""
    most = [_most_shared(size, count) for size, count in zip(sizes, counts, strict=True)]

    def positions(outputs: Index, inside: Index) -> list[tirx.PrimExpr]:
        axes = zip(outputs, inside, sizes, counts, strict=True)
        return [output * size // count + place for output, place, size, count in axes]

    return most, positions


def _most_shared(size: Size, count: Size) -> Size:
    if isinstance(size, int) and isinstance(count, int):
        return max((-(-(i + 1) * size // count) - i * size // count for i in range(count)), default=0)
    return (size + count - 1) // count + 1


def _shared(outputs: Index, inside: Index, sizes: list[Size], counts: list[Size]) -> list[tirx.PrimExpr]:
    """Whether each place is inside of its output's window, which ends at ``ceil((i + 1) * size / n)``."""
    return [
        output * size // count + place < ((output + 1) * size + count - 1) // count
        for output, place, size, count in zip(outputs, inside, sizes, counts, strict=True)
    ]


def _image_sizes(x: relax.Expr, rank: int) -> list[Size]:
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in list(x.struct_info.shape)[-rank:]]


def _adaptive_avg_pool(rank: int) -> Converter:
    """The average of each of as many windows as ``output_size`` says."""

    def convert(b: Emitter, x: relax.Expr, _: Any) -> relax.Expr:
        wide, sizes, counts = b.wide(x), _image_sizes(x, rank), b.shape[-rank:]
        pairs = list(zip(sizes, counts, strict=True))
        if all(b.equal(size, count) for size, count in pairs):
            return x
        if all(count == 1 for count in counts) and _is_real(x):
            return op.mean(wide, [axis - rank for axis in range(rank)], keepdims=True)
        divide = all(
            isinstance(size, int) and isinstance(count, int) and count and size % count == 0 for size, count in pairs
        )
        if divide and _is_real(x):
            kernel = [size // count for size, count in pairs]
            pooled = _AVG_POOL[rank](batched(b, wide, rank), kernel, kernel, [0] * (2 * rank), [1] * rank, False, True)
            return unbatched(b, b.emit(pooled))
        return b.emit_te("adaptive_avg_pool", lambda image: _shared_averages(image, sizes, counts), wide)

    return convert


def _sizes_of(image: te.Tensor, sizes: list[Size]) -> list[Size]:
    """``sizes`` of an image in terms of the function that computes on it, which has variables of its own."""
    pairs = zip(sizes, list(image.shape)[-len(sizes) :], strict=True)
    return [size if isinstance(size, int) else own for size, own in pairs]


def _shared_averages(image: te.Tensor, sizes: list[Size], counts: list[Size]) -> te.Tensor:
    rank = len(sizes)
    sizes = _sizes_of(image, sizes)
    most, positions = _adaptive_windows(sizes, counts)
    inside = [reduction(extent, "inside") for extent in most]
    zero = tirx.const(0, image.dtype)

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        places = [axis.var for axis in inside]
        where, shared = positions(index[-rank:], places), _shared(index[-rank:], places, sizes, counts)
        found = read_within(lambda at: image(*index[:-rank], *at), where, list(image.shape)[-rank:], zero, *shared)
        return te.sum(found, inside)

    sums = te.compute(extents([*list(image.shape)[:-rank], *counts]), element, name="sums")

    def elements(outputs: Index) -> tirx.PrimExpr:
        total: tirx.PrimExpr = tirx.const(1, "int64")
        for output, size, count in zip(outputs, sizes, counts, strict=True):
            total = total * (((output + 1) * size + count - 1) // count - output * size // count)
        return total

    return te.compute(sums.shape, lambda *index: _divided(sums(*index), elements(index[-rank:])), name="averages")


def _adaptive_max_pool(rank: int) -> Converter:
    """The largest element of each of as many windows as ``output_size`` says, and its position."""

    def convert(b: Emitter, x: relax.Expr, _: Any) -> list[relax.Expr]:
        wide, shape = b.wide(x), b.sizes(_results(b)[0].shape)
        counts = shape[-rank:]

        def windows(image: te.Tensor) -> tuple[list[Size], Positions]:
            sizes = _sizes_of(image, _image_sizes(x, rank))
            most, positions = _adaptive_windows(sizes, counts)

            def clipped(outputs: Index, inside: Index) -> list[tirx.PrimExpr]:
                """The last element of a window again where it has none."""
                axes = zip(outputs, sizes, counts, strict=True)
                ends = [((output + 1) * size + count - 1) // count for output, size, count in axes]
                return [tirx.min(at, end - 1) for at, end in zip(positions(outputs, inside), ends, strict=True)]

            return most, clipped

        def maxima(image: te.Tensor) -> te.Tensor:
            most, clipped = windows(image)
            inside = [reduction(extent, "inside") for extent in most]

            def element(*index: tirx.Var) -> tirx.PrimExpr:
                return _maximum(image(*index[:-rank], *clipped(index[-rank:], [axis.var for axis in inside])), inside)

            return te.compute(extents(shape), element, name="maxima")

        largest = b.emit_te("adaptive_max_pool", maxima, wide)
        return [largest, _found(b, wide, largest, windows, shape)]

    return convert


def _lowest(dtype: str) -> tirx.PrimExpr:
    return tirx.const(-math.inf, dtype) if "float" in dtype else tirx.min_value(dtype)


# NaN is larger than everything, as in PyTorch.
_maximum = te.comm_reducer(
    lambda left, right: tirx.Select(tirx.any(left > right, left != left), left, right), _lowest, name="max"
)


def _max_unpool(rank: int) -> Converter:
    """Zeros, with each element at the position that pooling found it at; ``x [..., sizes]`` and ``indices`` alike."""

    def convert(b: Emitter, x: relax.Expr, indices: relax.Expr, *_: Any) -> relax.Expr:
        leading, sizes = b.shape[:-rank], b.shape[-rank:]
        if any(isinstance(size, int) and size == 0 for size in b.shape):
            return op.zeros(b.shape, b.dtype)
        images, pixels = math.prod(leading), math.prod(sizes)
        rows = [b.emit(b.reshape(tensor, [images, -1])) for tensor in (x, indices)]
        zeros = b.emit(op.zeros([images, pixels], b.dtype))
        return b.reshape(b.emit(op.scatter_elements(zeros, rows[1], rows[0], 1)), b.shape)

    return convert


CONVERTERS: dict[str, Converter] = {
    **{f"aten.max_pool{rank}d.default": _max_pool(rank, with_indices=False) for rank in (1, 2, 3)},
    **{f"aten.max_pool{rank}d_with_indices.default": _max_pool(rank, with_indices=True) for rank in (1, 2, 3)},
    **{f"aten.avg_pool{rank}d.default": _avg_pool(rank) for rank in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{rank}d.default": _adaptive_avg_pool(rank) for rank in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d.default": _adaptive_avg_pool(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d.default": _adaptive_max_pool(rank) for rank in (1, 2, 3)},
    **{f"aten.max_unpool{rank}d.default": _max_unpool(rank) for rank in (2, 3)},
}
