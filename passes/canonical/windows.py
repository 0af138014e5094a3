"""The windows that a convolution slides over an image: gathered as rows of a matrix product, or summed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tvm import arith, relax, te, tirx

from tkc.passes.graph.bindings import shape, static

Size: TypeAlias = tirx.PrimExpr | int


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution, from its attributes; a number an axis of the image.

    ``before`` and ``after`` are the zeros around the image.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, call: relax.Call) -> Windows:
        """Those of ``call``, an ``nn.conv1d``, ``nn.conv2d`` or ``nn.conv3d`` with a weight ``[out, channels, ...]``.

        Raises :class:`ValueError` where the weight's sizes are not known.
        """
        extents = tuple(int(size) for size in shape(call.args[1])[2:])
        padding = tuple(map(int, call.attrs.padding))
        axes = len(extents)
        strides, dilation = (tuple(map(int, values)) for values in (call.attrs.strides, call.attrs.dilation))
        return cls(extents, strides, dilation, padding[:axes], padding[axes:])

    @property
    def are_pixels(self) -> bool:
        """Whether each window is one pixel, and each pixel a window."""
        alone = all(extent == 1 for extent in self.extents) and all(stride == 1 for stride in self.strides)
        return alone and not self._padded

    def tile(self, sizes: Sequence[Size]) -> bool:
        """Whether every pixel of an image of ``sizes`` is in exactly one window."""
        if self._padded or self.strides != self.extents or any(step != 1 for step in self.dilation):
            return False
        known = [static(size) for size in sizes]
        return all(size is not None and size % extent == 0 for size, extent in zip(known, self.extents, strict=True))

    @property
    def _padded(self) -> bool:
        return any(self.before) or any(self.after)

    def counts(self, sizes: Sequence[Size]) -> list[Size]:
        """How many windows there are along each axis of an image of ``sizes``."""
        axes = zip(sizes, self.extents, self.strides, self.dilation, self.before, self.after, strict=True)
        simplify = arith.Analyzer().simplify  # as TVM does with the sizes of functions: one tensor's have one form
        return [
            simplify((size + before + after - dilation * (extent - 1) - 1) // stride + 1)
            for size, extent, stride, dilation, before, after in axes
        ]

    def with_channels_last(self, image: te.Tensor) -> te.Tensor:
        """``image [batch, ..., channels]`` to ``[batch, counts ..., extents ..., channels]``."""
        batch, *sizes, channels = image.shape
        axes = len(sizes)

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            item, channel = index[0], index[-1]
            positions = self._positions(index[1 : 1 + axes], index[1 + axes : -1])
            return self._pixel(positions, sizes, lambda pixel: image(item, *pixel, channel))

        return te.compute((batch, *self.counts(sizes), *self.extents, channels), element, name="windows")

    def of_groups(self, image: te.Tensor) -> te.Tensor:
        """``image [batch, ..., groups, channels]`` to ``[groups, batch, counts ..., extents ..., channels]``."""
        batch, *sizes, groups, channels = image.shape
        axes = len(sizes)

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            group, item, channel = index[0], index[1], index[-1]
            positions = self._positions(index[2 : 2 + axes], index[2 + axes : -1])
            return self._pixel(positions, sizes, lambda pixel: image(item, *pixel, group, channel))

        return te.compute((groups, batch, *self.counts(sizes), *self.extents, channels), element, name="windows")

    def sums(self, image: te.Tensor, weight: te.Tensor, groups: int, dtype: str) -> te.Tensor:
        """``image [batch, ..., channels]`` convolved with ``weight [extents ..., channels / groups, out]``, summed in
        float32, as ``[batch, counts ..., out]`` of ``dtype``.
        """
        batch, *sizes, channels = image.shape
        own, out = int(channels) // groups, weight.shape[-1]
        of_group = int(out) // groups
        inside = [te.reduce_axis((0, extent), name="inside") for extent in self.extents]
        among = [te.reduce_axis((0, own), name="among")] if own > 1 else []

        if self._padded:
            image = self._with_zeros(image)

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            item, channel = index[0], index[-1]
            first = channel if of_group == 1 else channel // of_group
            read = first * own + among[0].var if among else first
            axes = zip(index[1:-1], inside, self.strides, self.dilation, strict=True)
            pixel = [window * stride + axis.var * dilation for window, axis, stride, dilation in axes]
            factor = weight(*inside, *(among or [0]), channel)
            return te.sum(image(item, *pixel, read).astype("float32") * factor.astype("float32"), [*inside, *among])

        summed = te.compute((batch, *self.counts(sizes), out), element, name="convolved")
        return summed if dtype == "float32" else te.compute(summed.shape, lambda *index: summed(*index).astype(dtype))

    def _with_zeros(self, image: te.Tensor) -> te.Tensor:
        """``image [batch, ..., channels]`` with the zeros around it."""
        batch, *sizes, channels = image.shape
        padded = [size + before + after for size, before, after in zip(sizes, self.before, self.after, strict=True)]

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            item, *positions, channel = index
            inside = [position - before for position, before in zip(positions, self.before, strict=True)]
            return self._pixel(inside, sizes, lambda pixel: image(item, *pixel, channel))

        return te.compute((batch, *padded, channels), element, name="padded")

    def as_rows(self, image: te.Tensor, width: int) -> te.Tensor:
        """``image [batch, channels, ...]`` to ``[batch, counts ..., width]``.

        Of a row, the first ``channels * extents`` are the window as a weight ``[out, channels, ...]`` has it; zeros
        follow.
        """
        batch, channels, *sizes = image.shape
        used = int(channels) * prod(self.extents)

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            item, column = index[0], index[-1]
            inside: list[tirx.PrimExpr] = []
            for extent in reversed(self.extents):
                inside.insert(0, column % extent)
                column = column // extent
            positions = self._positions(index[1:-1], inside)
            in_row = [] if used == width else [index[-1] < used]
            channel = column if used == width else tirx.min(column, int(channels) - 1)
            return self._pixel(positions, sizes, lambda pixel: image(item, channel, *pixel), in_row)

        return te.compute((batch, *self.counts(sizes), width), element, name="windows")

    def _positions(self, windows: Sequence[tirx.PrimExpr], inside: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
        axes = zip(windows, inside, self.strides, self.dilation, self.before, strict=True)
        return [window * stride + offset * dilation - before for window, offset, stride, dilation, before in axes]

    def _pixel(
        self,
        positions: Sequence[tirx.PrimExpr],
        sizes: Sequence[tirx.PrimExpr],
        read: Callable[[list[tirx.PrimExpr]], tirx.PrimExpr],
        conditions: Sequence[tirx.PrimExpr] = (),
    ) -> tirx.PrimExpr:
        """What ``read`` finds at ``positions``; zero outside of the image, or where a condition does not hold.

        What is read lies inside in any case, and the result is selected: loads without a condition can be vectors. That
        TVM simplifies the positions by the condition again is harmless on a GPU, where each load then stands below it.
        """
        conditions = list(conditions)
        inside: list[tirx.PrimExpr] = []
        for position, size, before, after in zip(positions, sizes, self.before, self.after, strict=True):
            if before:
                conditions.append(position >= 0)
            if after:
                conditions.append(position < size)
            pixel = tirx.max(position, tirx.const(0, position.dtype)) if before else position
            inside.append(tirx.min(pixel, size - 1) if after else pixel)
        value = read(inside)
        return tirx.Select(tirx.all(*conditions), value, tirx.const(0, value.dtype)) if conditions else value
