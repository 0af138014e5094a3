"""Slices, pads, tiles and axes of size 1, whose places or numbers only the running model has.

Vectors of them are brought to one element for each axis of the tensor. Sizes that follow from them are computed before
the operator runs, and are symbolic sizes for what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import (
    Converted,
    fixed_length,
    normalized_axis,
    scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import bounded, extents, read_within

MIRRORED = {"edge", "reflect", "wrap"}
"""The modes of Pad that repeat elements of the tensor."""


def as_int64(node: Node, position: int) -> relax.Expr:
    """An input of integers, known or not, as int64."""
    known = node.sizes(position)
    if known is not None:
        return size_vector(node, [int(size) if isinstance(size, float) else size for size in known])
    tensor = node.tensor(position)
    return tensor if node.dtype(position) == "int64" else node.emit(relax.op.astype(tensor, "int64"))


class Places:
    """Which axes of a tensor of ``rank`` dimensions the elements of some vectors belong to.

    ``axes`` is the input that says it, if it is given; otherwise they belong to the first ``count`` axes.
    """

    def __init__(self, node: Node, axes: int, count: int, rank: int) -> None:
        op, emit = relax.op, node.emit
        self._node = node
        self.known: list[int] | None = None
        """The axes, where the compiler knows them."""
        self.fits: relax.Expr | None = None
        """Whether they are different axes of the tensor, where only the running model knows them."""
        given = None if node.has(axes) and node.sizes(axes) is None else (node.axes(axes) or range(count))
        if given is not None:
            self.known = [normalized_axis(axis, rank) for axis in given]
            hits = np.zeros((count, rank), "int64")
            hits[np.arange(count), self.known] = 1
            self._hits: relax.Expr = relax.const(hits, "int64")
        else:
            self._hits, self.fits = named(node, as_int64(node, axes), count, rank)
        self._named = emit(op.sum(self._hits, [0]))

    def spread(self, vector: relax.Expr, default: relax.Expr) -> relax.Expr:
        """``vector``, int64 [count], as one element for each axis; ``default``, int64 [rank], for the other axes."""
        op, emit = relax.op, self._node.emit
        column = op.expand_dims(vector, [1])
        placed = emit(op.sum(emit(op.multiply(self._hits, column)), [0]))
        return emit(op.where(op.greater(self._named, scalar(0, "int64")), placed, default))


def named(node: Node, axes: relax.Expr, count: int, rank: int) -> tuple[relax.Expr, relax.Expr]:
    """Which of ``rank`` axes each of ``count`` numbers names, int64 [count, rank], and whether all name one, each its
    own."""
    op, emit = relax.op, node.emit
    counted = emit(op.where(op.less(axes, scalar(0, "int64")), op.add(axes, scalar(rank, "int64")), axes))
    column = emit(op.reshape(counted, [count, 1]))
    hits = emit(op.astype(op.equal(column, relax.const(np.arange(rank), "int64")), "int64"))
    most, total = op.max(op.sum(hits, [0])), op.sum(hits)
    both = op.logical_and(op.less_equal(most, scalar(1, "int64")), op.equal(total, scalar(count, "int64")))
    return hits, emit(both)


def _ones(rank: int) -> relax.Expr:
    return relax.const(np.ones(rank, "int64"), "int64")


def _zeros(rank: int) -> relax.Expr:
    return relax.const(np.zeros(rank, "int64"), "int64")


def _with_known(sizes: Sequence[Size], shape: Sequence[Size], places: Places) -> list[Size]:
    """``sizes``, but of ``shape`` those of axes that stay as they are."""
    if places.known is None:
        return list(sizes)
    return [size if axis in places.known else shape[axis] for axis, size in enumerate(sizes)]


def window(
    node: Node,
    data: relax.Expr,
    begins: relax.Expr,
    sizes: Sequence[Size],
    steps: relax.Expr | None = None,
    outside: float | None = None,
) -> relax.Expr:
    """Along each axis every ``steps``-th element (int64 [rank]) from ``begins`` on, as many as ``sizes`` says.

    Where the tensor has none there is the number ``outside``; without it, all are to be there.
    """

    def compute(source: te.Tensor, begins: te.Tensor, sizes: Sequence[Size], *steps: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            strides = [steps[0](axis) for axis in range(len(index))] if steps else [1] * len(index)
            place = [begins(axis) + i * stride for axis, (i, stride) in enumerate(zip(index, strides, strict=True))]
            if outside is None:
                return source(*map(bounded, place, source.shape))
            fill = tirx.const(outside, source.dtype)
            return read_within(lambda at: source(*at), place, extents(source.shape), fill)

        return te.compute(extents(sizes), element, name="window")

    given = [] if steps is None else [steps]
    return node.builder.emit_te(compute, data, begins, list(sizes), *given, primfunc_name_hint="window")


def sliced(node: Node) -> Converted:
    """Slice whose starts, ends, axes or steps are computed."""
    op, emit, shape, rank = relax.op, node.emit, node.shape(0), node.rank(0)
    count = fixed_length(node, 1)
    places = Places(node, 3, count, rank)
    zero, one = scalar(0, "int64"), scalar(1, "int64")
    lengths, zeros = size_vector(node, shape), _zeros(rank)
    steps = places.spread(as_int64(node, 4), _ones(rank)) if node.has(4) else _ones(rank)
    backwards = emit(op.less(steps, zero))
    last = emit(op.subtract(lengths, one))
    lowest = emit(op.where(backwards, scalar(-1, "int64"), zero))
    highest = emit(op.where(backwards, last, lengths))

    def within(given: relax.Expr) -> relax.Expr:
        counted = emit(op.where(op.less(given, zero), op.add(given, lengths), given))
        return emit(op.maximum(op.minimum(counted, highest), lowest))

    starts = within(places.spread(as_int64(node, 1), zeros))
    ends = within(places.spread(as_int64(node, 2), lengths))
    size = emit(op.abs(steps))
    distance = emit(op.where(backwards, op.subtract(starts, ends), op.subtract(ends, starts)))
    # A step may be the largest number there is, so that nothing may be added to it.
    safe = emit(op.maximum(size, one))
    counts = emit(op.add(op.floor_divide(emit(op.maximum(op.subtract(distance, one), scalar(-1, "int64"))), safe), one))
    counts = emit(op.where(op.greater(distance, zero), counts, zero))
    fits = emit(op.greater(op.min(size), zero))
    if places.fits is not None:
        fits = emit(op.logical_and(fits, places.fits))
    sizes = node.run_time_sizes(counts, rank, fits)
    return window(node, node.tensor(0), starts, _with_known(sizes, shape, places), steps)


def split(node: Node, axis: int) -> Converted:
    """Split into parts whose sizes are computed."""
    op, emit, shape = relax.op, node.emit, node.shape(0)
    parts, count = as_int64(node, 1), fixed_length(node, 1)
    whole = emit(op.equal(op.sum(parts), op.reshape(size_vector(node, [shape[axis]]), ())))
    sizes = node.run_time_sizes(parts, count, whole)
    ends = emit(op.cumsum(parts, 0))
    starts = emit(op.subtract(ends, parts))
    results = []
    for i, size in enumerate(sizes):
        start = emit(op.strided_slice(starts, [0], [i], [i + 1]))
        begins = emit(op.multiply(start, relax.const((np.arange(len(shape)) == axis).astype("int64"), "int64")))
        results.append(window(node, node.tensor(0), begins, [size if a == axis else s for a, s in enumerate(shape)]))
    return results


def padded(node: Node, mode: str, fill: relax.Expr) -> Converted:
    """Pad by numbers that are computed, or with a number that is, ``fill``, without dimensions."""
    op, emit, shape, rank = relax.op, node.emit, node.shape(0), node.rank(0)
    pads = as_int64(node, 1) if node.has(1) else relax.const(np.array(node.attributes["pads"]), "int64")
    length = pads.struct_info.shape.values[0]
    if not isinstance(length, tirx.IntImm) or int(length) % 2:
        raise ConversionError(f"has {length} pads; expected a fixed number, two for each axis")
    count = int(length) // 2
    places, zeros = Places(node, 3, count, rank), _zeros(rank)
    before, after = (
        places.spread(emit(op.strided_slice(pads, [0], [i * count], [(i + 1) * count])), zeros) for i in range(2)
    )
    known = node.sizes(1) if node.has(1) else list(node.attributes["pads"])
    sizes: Sequence[Size]
    if known is not None and places.known is not None:
        sizes = list(shape)
        for i, axis in enumerate(places.known):
            sizes[axis] = node.algebra.simplify(shape[axis] + known[i] + known[count + i])
    else:
        total = emit(op.add(op.add(size_vector(node, shape), before), after))
        sizes = _with_known(node.run_time_sizes(total, rank, places.fits), shape, places)

    def compute(
        source: te.Tensor, before: te.Tensor, after: te.Tensor, fill: te.Tensor, sizes: Sequence[Size]
    ) -> te.Tensor:
        zero = tirx.const(0, "int64")

        def element(*index: tirx.Var) -> tirx.PrimExpr:
            place, inside = [], []
            for axis, (i, size) in enumerate(zip(index, source.shape, strict=True)):
                # Pads below 0 take elements away before others are repeated.
                first = tirx.max(zero - before(axis), zero)
                left = size - first - tirx.max(zero - after(axis), zero)
                offset = i - tirx.max(before(axis), zero)
                place.append(first + (_REPEATED[mode](offset, left) if mode in MIRRORED else offset))
                inside += [] if mode in MIRRORED else [offset >= 0, offset < left]
            return read_within(lambda at: source(*at), place, extents(source.shape), fill(), *inside)

        return te.compute(extents(sizes), element, name="padded")

    operands = (node.tensor(0), before, after, fill, list(sizes))
    return node.builder.emit_te(compute, *operands, primfunc_name_hint="pad")


def _edge(offset: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    return bounded(offset, size)


def _reflect(offset: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    period = tirx.max(2 * (size - 1), tirx.const(1, "int64"))  # of one element that is all there is
    position = tirx.floormod(offset, period)
    return tirx.min(position, 2 * (size - 1) - position)


def _wrap(offset: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.floormod(offset, tirx.max(size, tirx.const(1, "int64")))


_REPEATED: dict[str, Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]] = {
    "edge": _edge,
    "reflect": _reflect,
    "wrap": _wrap,
}
"""The element of an axis that stands at an offset before, in, or behind it."""


def tiled(node: Node) -> Converted:
    """Tile by numbers that are computed."""
    shape, rank = node.shape(0), node.rank(0)
    if fixed_length(node, 1) != rank:
        raise ConversionError(f"repeats a tensor of {rank} dimensions by {fixed_length(node, 1)} numbers; give {rank}")
    repeats = as_int64(node, 1)
    sizes = node.run_time_sizes(node.emit(relax.op.multiply(repeats, size_vector(node, shape))), rank)

    def compute(source: te.Tensor, sizes: Sequence[Size]) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            one = tirx.const(1, "int64")
            return source(*(tirx.floormod(i, tirx.max(n, one)) for i, n in zip(index, source.shape, strict=True)))

        return te.compute(sizes, element, name="tiled")

    return node.builder.emit_te(compute, node.tensor(0), list(sizes), primfunc_name_hint="tile")


def squeezed(node: Node) -> Converted:
    """Squeeze of axes that are computed: a call fails where one of them is not of size 1."""
    op, emit, shape, rank = relax.op, node.emit, node.shape(0), node.rank(0)
    count = fixed_length(node, 1)
    if count > rank:
        raise ConversionError(f"has {count} axes for a tensor of {rank} dimensions; correct the model")
    hits, fits = named(node, as_int64(node, 1), count, rank)
    gone, lengths, one = emit(op.sum(hits, [0])), size_vector(node, shape), scalar(1, "int64")
    single = op.min(op.where(op.greater(gone, scalar(0, "int64")), op.astype(op.equal(lengths, one), "int64"), one))
    fits = emit(op.logical_and(fits, op.greater(single, scalar(0, "int64"))))
    return without(node, node.tensor(0), shape, emit(op.subtract(one, gone)), rank - count, fits)


def without(
    node: Node,
    data: relax.Expr,
    shape: Sequence[Size],
    kept: relax.Expr,
    left: int,
    fits: relax.Expr | None = None,
) -> relax.Expr:
    """``data`` without its axes of size 1 where int64 ``kept`` is 0; the ``left`` others have the sizes of ``shape``.

    A call fails where ``fits`` does not hold.
    """
    op, emit = relax.op, node.emit
    if left == 0:
        if fits is not None:
            node.require(fits)
        return op.reshape(data, ())
    positions = emit(op.subtract(op.cumsum(kept, 0), kept))
    hits = op.astype(op.equal(positions, relax.const(np.arange(left)[:, None], "int64")), "int64")
    moves = emit(op.multiply(hits, kept))
    sizes = emit(op.sum(emit(op.multiply(moves, size_vector(node, shape))), [1]))
    return _moved(node, data, moves, node.run_time_sizes(sizes, left, fits))


def _moved(node: Node, data: relax.Expr, moves: relax.Expr, sizes: Sequence[Size]) -> relax.Expr:
    """``data`` with its axes as other ones: int64 ``moves`` [new axes, axes] is 1 where one is the other, else 0.

    A reshape would be the same. But of many sizes that data decides, its indices are formulas that TVM does not end to
    simplify.
    """

    def compute(source: te.Tensor, moves: te.Tensor, sizes: Sequence[Size]) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            place = [
                sum((moves(new, old) * i for new, i in enumerate(index)), tirx.const(0, "int64"))
                for old in range(len(source.shape))
            ]
            return source(*map(bounded, place, source.shape))

        return te.compute(extents(sizes), element, name="moved")

    return node.builder.emit_te(compute, data, moves, list(sizes), primfunc_name_hint="move_axes")


def unsqueezed(node: Node) -> Converted:
    """Unsqueeze of axes that are computed."""
    op, emit, shape = relax.op, node.emit, node.shape(0)
    count = fixed_length(node, 1)
    rank = node.rank(0) + count
    hits, fits = named(node, as_int64(node, 1), count, rank)
    one = scalar(1, "int64")
    new = emit(op.sum(hits, [0]))
    if not shape:
        return op.reshape(node.tensor(0), node.run_time_sizes(new, rank, fits))
    kept = emit(op.subtract(one, new))
    positions = emit(op.reshape(emit(op.subtract(op.cumsum(kept, 0), kept)), [rank, 1]))
    same = op.astype(op.equal(positions, relax.const(np.arange(len(shape)), "int64")), "int64")
    moves = emit(op.multiply(same, op.reshape(kept, [rank, 1])))
    sizes = emit(op.add(emit(op.sum(emit(op.multiply(moves, size_vector(node, shape))), [1])), new))
    return _moved(node, node.tensor(0), moves, node.run_time_sizes(sizes, rank, fits))


def center_cropped(node: Node, axes: Sequence[int]) -> Converted:
    """CenterCropPad of sizes that are symbolic or computed."""
    op, emit, shape = relax.op, node.emit, node.shape(0)
    known, targets = node.sizes(1), as_int64(node, 1)
    if fixed_length(node, 1) != len(axes):
        raise ConversionError(f"has {fixed_length(node, 1)} sizes for {len(axes)} axes; give one for each")
    chosen: Sequence[Size] = node.run_time_sizes(targets, len(axes)) if known is None else known
    sizes = list(shape)
    for axis, size in zip(axes, chosen, strict=True):
        sizes[axis] = size
    difference = emit(op.subtract(size_vector(node, shape), size_vector(node, sizes)))
    half = emit(op.floor_divide(op.abs(difference), scalar(2, "int64")))
    begins = emit(op.where(op.less(difference, scalar(0, "int64")), op.negative(half), half))
    return window(node, node.tensor(0), begins, sizes, outside=0)
