"""Operators that rearrange: views, permutations, slices, joins, padding, broadcasting."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.dtypes import as_element
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.strided import strided_slice_written
from tkc.frontend.torch.converters.symbols import Size
from tkc.frontend.torch.converters.vectors import as_vectors


def reshape(b: Emitter, x: relax.Expr, *_: Any) -> relax.Expr:
    """``x`` in the shape of the result, itself where it has it already."""
    return x if b.has_shape(x, b.shape) else b.reshape(x, b.shape)


def expand(b: Emitter, x: relax.Expr, *_: Any) -> relax.Expr:
    """``x`` broadcast to the shape of the result."""
    return x if b.has_shape(x, b.shape) else op.broadcast_to(x, b.shape)


def permute(b: Emitter, x: relax.Expr, axes: list[int]) -> relax.Expr:
    """``x`` with its dimensions in the order ``axes``."""
    axes = [axis % len(axes) for axis in axes]
    return x if axes == sorted(axes) else op.permute_dims(x, axes)


def transpose(b: Emitter, x: relax.Expr, first: int = 0, second: int = 1) -> relax.Expr:
    """``x`` with two dimensions swapped; itself where it has none to swap, as ``t`` of a vector."""
    axes = list(range(x.struct_info.ndim))
    if len(axes) < 2:
        return x
    axes[first], axes[second] = axes[second], axes[first]
    return permute(b, x, axes)


def slice_(b: Emitter, x: relax.Expr, dim: int, start: Size | None, end: Size | None, step: Size = 1) -> relax.Expr:
    """``x[start:end:step]`` along ``dim``.

    The end is taken from the length that PyTorch found, so that no bound needs clamping.
    """
    dim %= x.struct_info.ndim
    if b.data_sizes.defines_sizes(b.node):
        return _data_slice(b, x, dim, start, end, step)
    if _is_decided_by_data(b, start, end):
        # PyTorch has found how many rows the model needs, whatever the data says in a call.
        return b.data_sizes.fitted(b.emit(_data_slice(b, x, dim, start, end, step)), b.shape)
    length = b.shape[dim]
    if b.equal(length, x.struct_info.shape[dim]) and step == 1:
        return x
    start = _clamped(b, 0 if start is None else start, x.struct_info.shape[dim])
    return _strided(b, x, dim, start, start + (length - 1) * step + 1, step)


def _data_slice(b: Emitter, x: relax.Expr, dim: int, start: Size | None, end: Size | None, step: Size) -> relax.Expr:
    """The same where data decides the start or the end, and PyTorch has a new name for the length: both are clamped."""
    first, length = _rows_between(b, x.struct_info.shape[dim], start, end, step)
    return _strided(b, x, dim, first, first + (length - 1) * step + 1, step)


def _rows_between(
    b: Emitter, size: Size, start: Size | None, end: Size | None, step: Size
) -> tuple[tirx.Var, tirx.Var]:
    """The first of the rows ``start:end:step`` of ``size``, and how many there are."""

    def place(index: Size | None, otherwise: Size) -> Size:
        if index is None:
            return otherwise
        number = tirx.IntImm("int64", index) if isinstance(index, int) else index
        first = number if b.symbols.is_positive(number + 1) else tirx.Select(number < 0, number + size, number)
        return b.data_sizes.computed(b.simplified(tirx.max(tirx.min(first, size), 0)))

    first, last = place(start, 0), place(end, size)
    length = b.data_sizes.computed(b.simplified(tirx.max(tirx.floordiv(last - first + step - 1, step), 0)))
    return first, length


def _is_decided_by_data(b: Emitter, *bounds: Size | None) -> bool:
    return any(bound is not None and b.data_sizes.decide(bound) for bound in bounds)


def _clamped(b: Emitter, index: Size, size: Size) -> Size:
    """A slice's start, counted from the front and inside the dimension, or behind it where the slice is empty."""
    if not isinstance(index, int):
        return _from_front(b, index, tirx.max(size + index, 0))
    if not isinstance(size, tirx.IntImm):
        return index if index >= 0 else tirx.max(size + index, 0)
    return min(max(index + int(size) if index < 0 else index, 0), int(size))


def _from_front(b: Emitter, index: tirx.PrimExpr, if_negative: tirx.PrimExpr) -> tirx.PrimExpr:
    """A symbolic ``index``, in whose place ``if_negative`` comes where it counts from the end."""
    if b.symbols.is_positive(index + 1):
        return index
    return if_negative if b.symbols.is_positive(-index) else tirx.Select(index < 0, if_negative, index)


def _strided(b: Emitter, x: relax.Expr, dim: int, start: Size, end: Size, step: Size = 1) -> relax.Expr:
    bounds = [b.simplified(start)], [b.simplified(end)], [step]
    return op.strided_slice(x, [dim], *bounds, assume_inbound=True)


def select(b: Emitter, x: relax.Expr, dim: int, index: Size) -> relax.Expr:
    """``x[index]`` along ``dim``."""
    start = _selected(b, x, dim, index)
    return op.squeeze(b.emit(_strided(b, x, dim % x.struct_info.ndim, start, start + 1)), [dim])


def _selected(b: Emitter, x: relax.Expr, dim: int, index: Size) -> Size:
    """``index`` along ``dim``, counted from the front."""
    if isinstance(index, int):
        return index if index >= 0 else x.struct_info.shape[dim] + index
    return _from_front(b, index, x.struct_info.shape[dim] + index)


def slice_scatter(
    b: Emitter,
    x: relax.Expr,
    source: relax.Expr,
    dim: int,
    start: Size | None,
    end: Size | None,
    step: Size = 1,
) -> relax.Expr:
    """``x`` with ``source`` in place of ``x[start:end]`` along ``dim``: what is before, ``source``, what is after."""
    dim %= x.struct_info.ndim
    size, length = x.struct_info.shape[dim], source.struct_info.shape[dim]
    if _is_decided_by_data(b, start, end):
        _, rows = _rows_between(b, size, start, end, step)
        shape = list(source.struct_info.shape)
        source = b.data_sizes.fitted(source, shape, [*shape[:dim], rows, *shape[dim + 1 :]])
    if b.equal(size, length):
        return b.cast(source, b.dtype)
    first = _clamped(b, 0 if start is None else start, size)
    if not isinstance(start, int | None) and not b.symbols.is_positive(size - first + 1):
        first = tirx.min(first, size)
    if step != 1:
        return strided_slice_written(b, x, b.cast(source, b.dtype), dim, first, step)
    last = first + length
    pieces = [] if b.equal(first, 0) else [b.emit(_strided(b, x, dim, 0, first))]
    pieces.append(b.cast(source, b.dtype))
    if not b.equal(last, size):
        pieces.append(b.emit(_strided(b, x, dim, last, size)))
    return op.concat(pieces, dim)


def select_scatter(b: Emitter, x: relax.Expr, source: relax.Expr, dim: int, index: Size) -> relax.Expr:
    """``x`` with ``source`` in place of ``x[index]`` along ``dim``."""
    dim %= x.struct_info.ndim
    start = _selected(b, x, dim, index)
    return slice_scatter(b, x, b.emit(op.expand_dims(source, dim)), dim, start, None)


def cat(b: Emitter, tensors: list[relax.Expr], dim: int = 0) -> relax.Expr:
    """The tensors one after the other along ``dim``; empty one-dimensional ones, which PyTorch ignores, left out."""
    rank = len(b.shape)
    tensors = [b.cast(x, b.dtype) for x in tensors if x.struct_info.ndim == rank]
    return tensors[0] if len(tensors) == 1 else op.concat(tensors, dim % rank)


def stack(b: Emitter, tensors: list[relax.Expr], dim: int = 0) -> relax.Expr:
    """The tensors one after the other along a new dimension."""
    axis = dim % len(b.shape)
    return cat(b, [b.emit(op.expand_dims(x, axis)) for x in tensors], axis)


def split_with_sizes(b: Emitter, x: relax.Expr, sizes: list[Size], dim: int = 0) -> list[relax.Expr]:
    """Consecutive pieces of ``x`` along ``dim``."""
    return _pieces(b, x, sizes, dim)


def split(b: Emitter, x: relax.Expr, _: Size, dim: int = 0) -> list[relax.Expr]:
    """Consecutive pieces of ``x`` along ``dim``, as many and as long as PyTorch made them."""
    dim %= x.struct_info.ndim
    return _pieces(b, x, [b.sizes(piece.shape)[dim] for piece in b.node.meta["val"]], dim)


def _pieces(b: Emitter, x: relax.Expr, sizes: list[Size], dim: int) -> list[relax.Expr]:
    dim %= x.struct_info.ndim
    if len(sizes) == 1:
        return [x]
    if all(isinstance(size, int) and size > 0 for size in sizes):
        bounds = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        pieces = b.emit(op.split(x, bounds, dim))
        return [b.emit(relax.TupleGetItem(pieces, i)) for i in range(len(sizes))]
    starts = [sum(sizes[:i], 0) for i in range(len(sizes))]
    shape = list(x.struct_info.shape)
    return [
        b.emit(op.zeros([*shape[:dim], 0, *shape[dim + 1 :]], x.struct_info.dtype))
        if b.equal(size, 0)
        else b.emit(_strided(b, x, dim, start, start + size))
        for start, size in zip(starts, sizes, strict=True)
    ]


def unbind(b: Emitter, x: relax.Expr, dim: int = 0) -> list[relax.Expr]:
    """Every ``x[i]`` along ``dim``."""
    return [select(b, x, dim, i) for i in range(len(b.node.meta["val"]))]


def unsqueeze(b: Emitter, x: relax.Expr, dim: int) -> relax.Expr:
    """``x`` with a dimension of one at ``dim``."""
    return op.expand_dims(x, dim % (x.struct_info.ndim + 1))


def repeat(b: Emitter, x: relax.Expr, repeats: list[Size]) -> relax.Expr:
    """``x`` tiled ``repeats`` times along each dimension, by broadcasting."""
    sizes = [1] * (len(repeats) - x.struct_info.ndim) + list(x.struct_info.shape)
    tiled = b.emit(b.reshape(x, [part for size in sizes for part in (1, size)]))
    tiled = b.emit(op.broadcast_to(tiled, [part for r, size in zip(repeats, sizes, strict=True) for part in (r, size)]))
    return b.reshape(tiled, b.shape)


def flip(b: Emitter, x: relax.Expr, dims: list[int]) -> relax.Expr:
    """``x`` reversed along ``dims``."""
    for dim in dims:
        x = b.emit(op.flip(x, dim % x.struct_info.ndim))
    return x


def roll(b: Emitter, x: relax.Expr, shifts: list[Size], dims: list[int]) -> relax.Expr:
    """``x`` rotated by ``shifts`` along ``dims``, or in reading order where there are no ``dims``."""
    if not dims:
        flat = b.emit(b.reshape(x, [-1]))
        return b.reshape(_rolled(b, flat, shifts[0], 0), b.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(b, x, shift, dim % x.struct_info.ndim)
    return x


def _rolled(b: Emitter, x: relax.Expr, shift: Size, dim: int) -> relax.Expr:
    size = x.struct_info.shape[dim]
    if b.equal(size, 1):
        return x
    # A call may have no elements along the dimension, and processors divide by nothing else.
    cut = size - shift % (max(size, 1) if isinstance(size, int) else tirx.max(size, 1))
    last, first = b.emit(_strided(b, x, dim, cut, size)), b.emit(_strided(b, x, dim, 0, cut))
    return b.emit(op.concat([last, first], dim))


def constant_pad(b: Emitter, x: relax.Expr, padding: list[Size], value: Any = 0) -> relax.Expr:
    """``x`` with ``value`` around it; negative padding cuts off. ``padding`` counts from the last dimension."""
    rank = x.struct_info.ndim
    pairs = [(0, 0)] * (rank - len(padding) // 2) + list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    for dim, (before, after) in enumerate(pairs):
        size = x.struct_info.shape[dim]
        cuts = [_at_least_0(b, -p) for p in (before, after)]
        if not all(b.equal(cut, 0) for cut in cuts):
            x = b.emit(_strided(b, x, dim, cuts[0], size - cuts[1]))
    widths = [_at_least_0(b, p) for pair in pairs for p in pair]
    if all(isinstance(width, int) and width == 0 for width in widths):
        return x
    value = as_element(value, b.dtype)
    if all(isinstance(width, int) for width in widths) and _is_float64(value):
        return op.nn.pad(x, widths, "constant", value)
    for dim in range(rank):
        before, after = widths[2 * dim : 2 * dim + 2]
        x = _padded(b, x, dim, before, after, value)
    return x


def _at_least_0(b: Emitter, width: Size) -> Size:
    if isinstance(width, int):
        return max(width, 0)
    if b.symbols.is_positive(width + 1):
        return width
    return 0 if b.symbols.is_positive(1 - width) else tirx.max(width, 0)


def _is_float64(value: float) -> bool:
    """Whether a number stays what it is in float64, in which an operator's attribute keeps it."""
    return isinstance(value, float) or int(float(value)) == value


def _padded(b: Emitter, x: relax.Expr, dim: int, before: Size, after: Size, value: Any) -> relax.Expr:
    shape = list(x.struct_info.shape)
    fill = b.tensor(value, b.dtype)

    def block(width: Size) -> relax.Expr:
        return b.emit(op.full([*shape[:dim], width, *shape[dim + 1 :]], fill, b.dtype))

    pieces = [block(before), x, block(after)]
    widths = (before, 1, after)
    kept = [piece for piece, width in zip(pieces, widths, strict=True) if not b.equal(width, 0)]
    return x if len(kept) == 1 else b.emit(op.concat(kept, dim))


def diff(
    b: Emitter, x: relax.Expr, n: int, dim: int, prepend: relax.Expr | None, append: relax.Expr | None
) -> relax.Expr:
    """The ``n``-th difference along ``dim``.

    What the prepended and appended tensors contribute stays apart from the differences inside ``x``, so that those of
    an ``arange`` can be seen to be constant.
    """
    dim %= x.struct_info.ndim
    segments = [segment for segment in (prepend, x, append) if segment is not None]
    if n == 0:  # what would be joined to it is left out
        return x
    for _ in range(n):
        segments = _differences(b, segments, dim)
    return segments[0] if len(segments) == 1 else op.concat(segments, dim)


def _differences(b: Emitter, segments: list[relax.Expr], dim: int) -> list[relax.Expr]:
    """The differences inside each segment and across their borders, in order."""
    minus = op.logical_xor if segments[0].struct_info.dtype == "bool" else op.subtract
    out: list[relax.Expr] = []
    for i, segment in enumerate(segments):
        size = segment.struct_info.shape[dim]
        if i:
            before = segments[i - 1]
            end = before.struct_info.shape[dim]
            first, last = b.emit(_strided(b, segment, dim, 0, 1)), b.emit(_strided(b, before, dim, end - 1, end))
            out.append(b.emit(minus(first, last)))
        if not b.equal(size, 1):
            later, earlier = b.emit(_strided(b, segment, dim, 1, size)), b.emit(_strided(b, segment, dim, 0, size - 1))
            out.append(b.emit(minus(later, earlier)))
    return out


CONVERTERS: dict[str, Converter] = {
    "aten.view.default": reshape,
    "aten.reshape.default": reshape,
    "aten._unsafe_view.default": reshape,
    "aten.flatten.using_ints": reshape,
    "aten.unflatten.int": reshape,
    "aten.view_as.default": reshape,
    "aten.squeeze.default": reshape,
    "aten.squeeze.dim": reshape,
    "aten.squeeze.dims": reshape,
    "aten.unsqueeze.default": unsqueeze,
    "aten.expand.default": expand,
    "aten.expand_as.default": expand,
    "aten.broadcast_to.default": expand,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": transpose,
    "aten.slice.Tensor": slice_,
    "aten.slice_scatter.default": slice_scatter,
    "aten.select.int": select,
    "aten.select_scatter.default": select_scatter,
    "aten.cat.default": cat,
    "aten.stack.default": stack,
    "aten.chunk.default": split,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split_with_sizes,
    "aten.unbind.int": unbind,
    "aten.repeat.default": repeat,
    "aten.flip.default": as_vectors(flip),
    "aten.roll.default": roll,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.diff.default": diff,
}
