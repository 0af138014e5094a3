"""Convolutions and transposed convolutions over one, two and three axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from tkc.frontend.converters.emitter import Converter, Emitter
from tkc.frontend.converters.images import batched, extents, for_each_axis, unbatched
from tkc.frontend.converters.symbols import Size

_CONVOLUTIONS = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}


def convolution(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> relax.Expr:
    """The operator that PyTorch decomposes all convolutions into."""
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


def conv(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> relax.Expr:
    """``x [batch, channels, ...]`` (or without the batch) convolved with ``weight [out, channels / groups, ...]``.

    ``padding`` is a number an axis, ``"valid"`` or ``"same"``. Sums are in float32 for the 16-bit types.
    """
    rank = weight.struct_info.ndim - 2
    dilation = for_each_axis(dilation, rank)
    before, after = _padding(b, padding, dilation, weight)
    out = _convolved(b, batched(b, x, rank), weight, for_each_axis(stride, rank), before, after, dilation, groups)
    return unbatched(b, _biased(b, out, bias))


def _padding(b: Emitter, padding: Any, dilation: list[int], weight: relax.Expr) -> tuple[list[int], list[int]]:
    """How many zeros stand before and behind each axis; "same" puts the odd one behind."""
    if padding == "valid":
        return [0] * len(dilation), [0] * len(dilation)
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation, _kernel(b, weight), strict=True)]
        return [zeros // 2 for zeros in total], [zeros - zeros // 2 for zeros in total]
    widths = for_each_axis(padding, len(dilation))
    return widths, widths


def _kernel(b: Emitter, weight: relax.Expr) -> list[int]:
    sizes = list(weight.struct_info.shape)[2:]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        raise b.unsupported("a kernel of symbolic size is not supported. Fix its height and width.")
    return [int(size) for size in sizes]


def _convolved(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr,
    stride: list[int],
    before: list[int],
    after: list[int],
    dilation: list[int],
    groups: int,
) -> relax.Expr:
    """The sums over windows, in the precision that PyTorch accumulates in."""
    x, weight = b.wide(x), b.wide(weight)
    compute = _CONVOLUTIONS[len(stride)]
    out = compute(x, weight, stride, [*before, *after], dilation, groups, out_dtype=x.struct_info.dtype)
    return b.emit(out)


def _biased(b: Emitter, out: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    if bias is None:
        return out
    along = b.emit(op.reshape(b.cast(bias, out.struct_info.dtype), [1, -1, *[1] * (out.struct_info.ndim - 2)]))
    return b.emit(op.add(out, along))


@dataclass(frozen=True)
class _TransposedAxis:
    """One axis of a transposed convolution, as a plain one that computes ``stride`` neighbours as channels.

    Output ``stride * q + r`` sums the weights at ``stride * a + r`` times the inputs at ``q - a``. A plain convolution
    of ``taps`` weights, the last first, computes all ``r`` of one ``q``: no input is multiplied by a zero in between.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int
    output_padding: int

    @property
    def step(self) -> int:
        """How far the plain convolution's weights are apart: only a stride of 1 keeps the dilation."""
        return self.dilation if self.stride == 1 else 1

    @property
    def taps(self) -> int:
        """How many weights each neighbour has; with a stride, the dilation's zeros are among them."""
        return self.kernel if self.stride == 1 else -(-self._extent // self.stride)

    @property
    def _extent(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def before(self) -> int:
        """Zeros in front of the input; what the padding cuts off whole is not computed."""
        return max(self.step * (self.taps - 1) - self.padding // self.stride, 0)

    @property
    def after(self) -> int:
        """Zeros behind the input, so that the last output is computed."""
        return max((self._extent + self.output_padding - 1 - self.padding) // self.stride, 0)

    @property
    def skipped(self) -> int:
        """How many computed outputs stand before the first that is asked for."""
        return self.padding - self.stride * (self.step * (self.taps - 1) - self.before)

    @property
    def is_direct(self) -> bool:
        """Whether the plain convolution computes the outputs themselves."""
        exact = (self._extent + self.output_padding - 1 - self.padding) >= 0
        return self.stride == 1 and self.skipped == 0 and exact

    def weight_at(self, tap: tirx.PrimExpr, neighbour: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Which of the kernel's weights the plain convolution has at ``tap``, and whether there is one."""
        if self.stride == 1:
            return self.kernel - 1 - tap, tirx.const(True)
        offset = self.stride * (self.taps - 1 - tap) + neighbour
        exists = tirx.all(offset % self.dilation == 0, offset < self._extent)
        return tirx.min(offset // self.dilation, tirx.const(self.kernel - 1, "int64")), exists


def conv_transpose(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> relax.Expr:
    """The transpose of a convolution: ``weight [channels, out / groups, ...]``, each input spread over a window.

    It becomes a plain convolution and, where there are strides, a function that puts neighbours side by side.
    """
    rank = weight.struct_info.ndim - 2
    options = (for_each_axis(values, rank) for values in (stride, padding, dilation, output_padding))
    axes = [_TransposedAxis(*values) for values in zip(_kernel(b, weight), *options, strict=True)]
    plain = b.emit_te("transposed_weight", lambda tensor: _plain_weight(tensor, axes, groups), weight)
    before, after, steps = [a.before for a in axes], [a.after for a in axes], [a.step for a in axes]
    out = _convolved(b, batched(b, x, rank), plain, [1] * rank, before, after, steps, groups)
    if not all(axis.is_direct for axis in axes):
        sizes = b.shape[-rank:]
        out = b.emit_te("interleaved", lambda tensor: _interleaved(tensor, axes, sizes), out)
    return unbatched(b, _biased(b, out, bias))


def _plain_weight(weight: te.Tensor, axes: list[_TransposedAxis], groups: int) -> te.Tensor:
    """``weight [channels, out / groups, ...]`` as ``[out * strides, channels / groups, taps ...]``."""
    channels, out = (int(size) for size in weight.shape[:2])
    own, strides = channels // groups, [axis.stride for axis in axes]
    neighbours = prod(strides)

    def element(filter_: tirx.Var, channel: tirx.Var, *taps: tirx.Var) -> tirx.PrimExpr:
        out_channel, neighbour = filter_ // neighbours, filter_ % neighbours
        places: list[tirx.PrimExpr] = []
        for stride in reversed(strides):
            places.insert(0, neighbour % stride)
            neighbour = neighbour // stride
        found = [axis.weight_at(tap, place) for axis, tap, place in zip(axes, taps, places, strict=True)]
        value = weight(out_channel // out * own + channel, out_channel % out, *(position for position, _ in found))
        return tirx.if_then_else(tirx.all(*(exists for _, exists in found)), value, tirx.const(0, value.dtype))

    return te.compute(extents([out * groups * neighbours, own, *(axis.taps for axis in axes)]), element)


def _interleaved(computed: te.Tensor, axes: list[_TransposedAxis], sizes: list[Size]) -> te.Tensor:
    """``computed [batch, out * strides, ...]`` as ``[batch, out, sizes ...]``, neighbours side by side."""
    batch, channels, *_ = computed.shape
    neighbours = prod(axis.stride for axis in axes)

    def element(item: tirx.Var, channel: tirx.Var, *index: tirx.Var) -> tirx.PrimExpr:
        places = [position + axis.skipped for position, axis in zip(index, axes, strict=True)]
        neighbour: tirx.PrimExpr = tirx.const(0, "int64")
        for place, axis in zip(places, axes, strict=True):
            neighbour = neighbour * axis.stride + place % axis.stride
        windows = [place // axis.stride for place, axis in zip(places, axes, strict=True)]
        return computed(item, channel * neighbours + neighbour, *windows)

    return te.compute(extents([batch, channels // neighbours, *sizes]), element)


CONVERTERS: dict[str, Converter] = {
    "aten.convolution.default": convolution,
    **{f"aten.conv{rank}d.{overload}": conv for rank in (1, 2, 3) for overload in ("default", "padding")},
    "aten.conv_transpose1d.default": conv_transpose,
    "aten.conv_transpose2d.input": conv_transpose,
    "aten.conv_transpose3d.input": conv_transpose,
}
