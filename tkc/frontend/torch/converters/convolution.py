"""Convolutions and transposed convolutions over one, two and three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from tkc.frontend.pixels import extents
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.images import batched, for_each_axis, unbatched
from tkc.frontend.torch.converters.symbols import Size

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
    along = b.emit(b.reshape(b.cast(bias, out.struct_info.dtype), [1, -1, *[1] * (out.struct_info.ndim - 2)]))
    return b.emit(op.add(out, along))


@dataclass(frozen=True)
class _TransposedAxis:
    """One axis of a transposed convolution, as plain ones that compute neighbours as channels.

    Output ``stride * q + phase - padding`` sums the weights at each ``tap`` where ``dilation * tap`` is ``phase`` and
    ``a`` times the stride, times the inputs at ``q - a``. A plain convolution computes all phases that have as
    many weights: no input is multiplied by a zero, which would make a NaN of one that is not finite.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int
    output_padding: int

    @property
    def step(self) -> int:
        """How far the inputs of one output are apart."""
        return self.dilation // gcd(self.dilation, self.stride)

    @property
    def tap_step(self) -> int:
        """How far the weights of one output are apart."""
        return self.stride // gcd(self.dilation, self.stride)

    @property
    def phases(self) -> dict[int, list[int]]:
        """The phases by how many weights they have."""
        found: dict[int, list[int]] = {}
        for phase in range(self.stride):
            found.setdefault(self._taps(phase), []).append(phase)
        return found

    def first_tap(self, phase: int) -> int:
        """The first weight of ``phase``, which has one."""
        return next(tap for tap in range(self.kernel) if self._meets(tap, phase))

    def first_input(self, phase: int) -> int:
        """How many inputs before ``q`` the first weight reads."""
        return (self.dilation * self.first_tap(phase) - phase) // self.stride

    def before(self, taps: int) -> int:
        """Zeros in front of the input for the phases of so many ``taps``."""
        reach = self.step * (taps - 1)
        first = {phase: -((phase - self.padding) // self.stride) for phase in self.phases[taps]}
        return max(0, *(self.first_input(phase) + reach - q for phase, q in first.items()))

    def after(self, taps: int) -> int:
        """Zeros behind the input, so that the last output is computed."""
        return max(0, *(self._last(phase) - self.first_input(phase) for phase in self.phases[taps]))

    @property
    def is_direct(self) -> bool:
        """Whether one plain convolution computes the outputs themselves."""
        cut = self.dilation * (self.kernel - 1) - self.padding
        return self.stride == 1 and cut >= 0 and cut + self.output_padding >= 0

    def _last(self, phase: int) -> int:
        """How far behind the last input the last ``q`` is."""
        return (self.dilation * (self.kernel - 1) + self.output_padding - self.padding - phase) // self.stride

    def _meets(self, tap: int, phase: int) -> bool:
        return (self.dilation * tap - phase) % self.stride == 0

    def _taps(self, phase: int) -> int:
        return sum(self._meets(tap, phase) for tap in range(self.kernel))


@dataclass(frozen=True)
class _Part:
    """The outputs that have so many ``taps`` along each axis."""

    axes: list[_TransposedAxis]
    taps: tuple[int, ...]

    @property
    def phases(self) -> list[list[int]]:
        """Which outputs these are, along each axis."""
        return [axis.phases[taps] for axis, taps in zip(self.axes, self.taps, strict=True)]

    def padding(self) -> tuple[list[int], list[int]]:
        """Zeros before and behind the input."""
        pairs = list(zip(self.axes, self.taps, strict=True))
        return [axis.before(taps) for axis, taps in pairs], [axis.after(taps) for axis, taps in pairs]

    def weight(self, weight: te.Tensor, groups: int) -> te.Tensor:
        """``weight [channels, out / groups, ...]`` as ``[out * phases, channels / groups, taps ...]``."""
        channels, out = (int(size) for size in weight.shape[:2])
        own, counts = channels // groups, [len(phases) for phases in self.phases]
        neighbours = prod(counts)

        def element(filter_: tirx.Var, channel: tirx.Var, *taps: tirx.Var) -> tirx.PrimExpr:
            out_channel, neighbour = filter_ // neighbours, filter_ % neighbours
            places: list[tirx.PrimExpr] = []
            for count in reversed(counts):
                places.insert(0, neighbour % count)
                neighbour = neighbour // count
            found = [
                _chosen(place, {i: axis.first_tap(phase) for i, phase in enumerate(phases)})
                + (count - 1 - tap) * axis.tap_step
                for place, phases, tap, count, axis in zip(places, self.phases, taps, self.taps, self.axes, strict=True)
            ]
            return weight(out_channel // out * own + channel, out_channel % out, *found)

        return te.compute(extents([out * groups * neighbours, own, *self.taps]), element)

    def element(
        self, computed: te.Tensor, item: tirx.Var, channel: tirx.Var, places: Sequence[tirx.PrimExpr]
    ) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Whether the output is of this part, and what it is; ``places`` count the padding."""
        neighbour, windows, conditions = tirx.const(0, "int64"), [], []
        for axis, taps, place in zip(self.axes, self.taps, places, strict=True):
            phases, phase = axis.phases[taps], place % axis.stride
            neighbour = neighbour * len(phases) + _chosen(phase, {phase: i for i, phase in enumerate(phases)})
            shift = {phase: axis.before(taps) - axis.step * (taps - 1) - axis.first_input(phase) for phase in phases}
            windows.append(place // axis.stride + _chosen(phase, shift))
            if len(phases) < axis.stride:
                conditions.append(tirx.any(*(phase == each for each in phases)))
        count = prod(len(phases) for phases in self.phases)
        condition = tirx.all(*conditions) if conditions else tirx.const(True)
        return condition, computed(item, channel * count + neighbour, *windows)


def _chosen(key: tirx.PrimExpr, values: dict[int, int]) -> tirx.PrimExpr:
    """What ``values`` has for ``key``, which is among them where it matters."""
    if len(set(values.values())) == 1:
        return tirx.const(next(iter(values.values())), "int64")
    if all(value == number for number, value in values.items()):
        return key
    result = tirx.const(0, "int64")
    for number, value in values.items():
        result = tirx.Select(key == number, tirx.const(value, "int64"), result)
    return result


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

    It becomes plain convolutions, one where the stride divides the window, and a function that puts their outputs side
    by side where there are strides.
    """
    rank = weight.struct_info.ndim - 2
    options = (for_each_axis(values, rank) for values in (stride, padding, dilation, output_padding))
    axes = [_TransposedAxis(*values) for values in zip(_kernel(b, weight), *options, strict=True)]
    x = batched(b, x, rank)
    parts = [_Part(axes, taps) for taps in product(*(axis.phases for axis in axes)) if all(taps)]
    steps, computed = [axis.step for axis in axes], []
    for part in parts:
        plain = b.emit_te("transposed_weight", lambda tensor, part=part: part.weight(tensor, groups), weight)
        computed.append(_convolved(b, x, plain, [1] * rank, *part.padding(), steps, groups))
    out = computed[0]
    if not all(axis.is_direct for axis in axes):
        channels = int(weight.struct_info.shape[1]) * groups
        sizes = [channels, *b.shape[-rank:]]
        out = b.emit_te("interleaved", lambda *tensors: _interleaved(tensors, parts, sizes), *computed)
    return unbatched(b, _biased(b, out, bias))


def _interleaved(computed: Sequence[te.Tensor], parts: list[_Part], sizes: list[Size]) -> te.Tensor:
    """What the parts computed side by side, and zero where no weight is."""

    def element(item: tirx.Var, channel: tirx.Var, *index: tirx.Var) -> tirx.PrimExpr:
        places = [position + axis.padding for position, axis in zip(index, parts[0].axes, strict=True)]
        found = [part.element(each, item, channel, places) for part, each in zip(parts, computed, strict=True)]
        if len(found) == 1 and isinstance(found[0][0], tirx.IntImm):
            return found[0][1]
        value = tirx.const(0, computed[0].dtype)
        for condition, number in found:
            value = tirx.if_then_else(condition, number, value)
        return value

    return te.compute(extents([computed[0].shape[0], *sizes]), element)


CONVERTERS: dict[str, Converter] = {
    "aten.convolution.default": convolution,
    **{f"aten.conv{rank}d.{overload}": conv for rank in (1, 2, 3) for overload in ("default", "padding")},
    "aten.conv_transpose1d.default": conv_transpose,
    "aten.conv_transpose2d.input": conv_transpose,
    "aten.conv_transpose3d.input": conv_transpose,
}
