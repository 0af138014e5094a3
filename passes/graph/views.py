"""Says which element of its source a view (a reshape, permutation, slice, repetition, piece) shows at an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul

from tvm import arith, relax, tirx
from tvm.ir import Range

from tkc.contracts import SIGNED
from tkc.kernels.remainders import are_bounded
from tkc.passes.graph.bindings import Graph, known_dims, permuted_axes, shape, static

Index = tuple[tirx.PrimExpr, ...]

_ZERO = tirx.IntImm("int64", 0)


class IndexSpace:
    """Index variables with their bounds, and an analyzer that knows them and that sizes are not negative."""

    def __init__(self, sizes: Iterable[tirx.Var]) -> None:
        self.analyzer = arith.Analyzer()
        for size in sizes:
            if not size.name.endswith(SIGNED):
                self.assume_natural(size)

    @classmethod
    def of(cls, graph: Graph) -> IndexSpace:
        """The space over the symbolic sizes of the graph's function."""
        return cls(graph.sizes)

    def assume_natural(self, var: tirx.Var) -> None:
        """Tells the analyzer that ``var`` is zero or more."""
        self._assume_at_least(var, 0)

    def variable(self, name: str, extent: tirx.PrimExpr | int) -> tirx.PrimExpr:
        """A new index from 0 up to ``extent`` (excluded): a variable, or the number 0 where there is no other."""
        if static(extent) == 1:
            return _ZERO
        if isinstance(extent, tirx.Var):
            # Where there is an index at all, the axis is not empty.
            self._assume_at_least(extent, 1)
        var = tirx.Var(name, "int64")
        self.analyzer.bind(var, Range(_ZERO, int64(extent)))
        return var

    def _assume_at_least(self, var: tirx.Var, minimum: int) -> None:
        self.analyzer.update(var, arith.ConstIntBound(minimum, arith.ConstIntBound.POS_INF), override=True)

    def equal(self, left: tirx.PrimExpr | int, right: tirx.PrimExpr | int) -> bool:
        """Whether two indices or sizes are provably equal."""
        return self.analyzer.can_prove_equal(int64(left), int64(right))

    def within(self, index: tirx.PrimExpr, size: tirx.PrimExpr) -> bool:
        """Whether ``index`` provably lies in an axis of ``size`` elements."""
        return self.analyzer.can_prove(index >= 0) and self.analyzer.can_prove(index < size)

    def simplified(self, index: Iterable[tirx.PrimExpr | int]) -> Index:
        """Each entry of ``index`` in its simplest form, or as it is where TVM would get it wrong."""
        return tuple(self.simplest(int64(entry)) for entry in index)

    def simplest(self, entry: tirx.PrimExpr) -> tirx.PrimExpr:
        """``entry`` in its simplest form, or as it is where TVM would get it wrong."""
        return self.analyzer.simplify(entry) if are_bounded(entry, self.analyzer) else entry


def int64(value: tirx.PrimExpr | int) -> tirx.PrimExpr:
    """``value`` as an expression of the type that indices have."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def view_source(graph: Graph, space: IndexSpace, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index] | None:
    """The tensor that ``expr`` is a view of and the index there of what ``expr`` shows at ``index``.

    ``None`` where ``expr`` is no view, or one whose source index cannot be told.
    """
    value = graph.value(expr)
    if isinstance(value, relax.TupleGetItem):
        return _piece_source(graph, space, value, index)
    if (joined := graph.call(value, "relax.concat")) is not None:
        return _joined_source(graph, space, joined, index)
    call = graph.call(value, *_VIEWS)
    if call is None or any(known_dims(x.struct_info) is None for x in (call, call.args[0])):
        return None
    source = _VIEWS[call.op.name](call, index, space)
    return None if source is None else (call.args[0], space.simplified(source))


def broadcast_index(index: Index, dims: Sequence[tirx.PrimExpr]) -> Index:
    """The index into an operand with ``dims`` that broadcasting reads for ``index`` of the result."""
    aligned = index[len(index) - len(dims) :]
    return tuple(_ZERO if static(dim) == 1 else entry for entry, dim in zip(aligned, dims, strict=True))


def _permuted(call: relax.Call, index: Index, _: IndexSpace) -> Index:
    axes = permuted_axes(call)
    return tuple(index[axes.index(axis)] for axis in range(len(index)))


def _expanded(call: relax.Call, index: Index, _: IndexSpace) -> Index:
    new = {int(axis) % len(index) for axis in call.attrs.axis}
    return tuple(entry for axis, entry in enumerate(index) if axis not in new)


def _squeezed(call: relax.Call, index: Index, _: IndexSpace) -> Index:
    dims = shape(call.args[0])
    if call.attrs.axis is None:
        removed = {axis for axis, dim in enumerate(dims) if static(dim) == 1}
    else:
        removed = {int(axis) % len(dims) for axis in call.attrs.axis}
    kept = iter(index)
    return tuple(_ZERO if axis in removed else next(kept) for axis in range(len(dims)))


def _broadcast(call: relax.Call, index: Index, space: IndexSpace) -> Index | None:
    dims, result = shape(call.args[0]), shape(call)
    aligned = zip(dims, result[len(result) - len(dims) :], strict=True)
    if not all(static(dim) == 1 or space.equal(dim, wide) for dim, wide in aligned):
        return None
    return broadcast_index(index, dims)


def _repeated(call: relax.Call, index: Index, _: IndexSpace) -> Index | None:
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(index)
    return (*index[:axis], tirx.floordiv(index[axis], int64(int(call.attrs.repeats))), *index[axis + 1 :])


def _tiled(call: relax.Call, index: Index, _: IndexSpace) -> Index:
    dims = shape(call.args[0])
    aligned = index[len(index) - len(dims) :]
    return tuple(tirx.floormod(entry, dim) for entry, dim in zip(aligned, dims, strict=True))


def _sliced(call: relax.Call, index: Index, space: IndexSpace) -> Index | None:
    dims = shape(call.args[0])
    source = list(index)
    axes, begins, _, *strides = ([field.value for field in argument] for argument in call.args[1:])
    for position, (axis, begin) in enumerate(zip(map(int, axes), begins, strict=True)):
        stride = strides[0][position] if strides else int64(1)
        start = begin + dims[axis] if (number := static(begin)) is not None and number < 0 else begin
        in_bounds = space.analyzer.can_prove(start >= 0) and space.analyzer.can_prove(start <= dims[axis])
        if (static(stride) or 0) < 1 or not in_bounds:
            return None
        source[axis] = start + index[axis] * stride
    return tuple(source)


def _padded(call: relax.Call, index: Index, space: IndexSpace) -> Index | None:
    """Only where the index provably shows no padding."""
    before = [int(width) for width in call.attrs.pad_width][::2]
    source = space.simplified(entry - width for entry, width in zip(index, before, strict=True))
    return source if all(map(space.within, source, shape(call.args[0]))) else None


def _reshaped(call: relax.Call, index: Index, space: IndexSpace) -> Index | None:
    """By groups of neighbouring axes whose sizes have one product, so that symbolic sizes rarely need dividing."""
    old = [(axis, dim) for axis, dim in enumerate(shape(call.args[0])) if static(dim) != 1]
    new = [(axis, dim) for axis, dim in enumerate(shape(call)) if static(dim) != 1]
    groups = _equal_groups([dim for _, dim in old], [dim for _, dim in new], space)
    if groups is None:
        return None
    source: list[tirx.PrimExpr] = [_ZERO] * len(shape(call.args[0]))
    for old_axes, new_axes in groups:
        flat = flattened([index[axis] for axis, _ in new[new_axes]], [dim for _, dim in new[new_axes]])
        entries = unflattened(flat, [dim for _, dim in old[old_axes]])
        for (axis, _), entry in zip(old[old_axes], entries, strict=True):
            source[axis] = entry
    return tuple(source)


def _equal_groups(
    old: Sequence[tirx.PrimExpr], new: Sequence[tirx.PrimExpr], space: IndexSpace
) -> list[tuple[slice, slice]] | None:
    """The finest cut of both lists into groups with equal products; ``None`` if the totals may differ."""
    old_products, new_products = (list(accumulate(dims, mul, initial=int64(1))) for dims in (old, new))
    cuts = [(0, 0)]
    for i, product in enumerate(old_products):
        if i > cuts[-1][0]:
            ends = (j for j in range(cuts[-1][1] + 1, len(new_products)) if space.equal(product, new_products[j]))
            if (end := next(ends, None)) is not None:
                cuts.append((i, end))
    if cuts[-1] != (len(old), len(new)):
        return None
    return [(slice(a, b), slice(c, d)) for (a, c), (b, d) in pairwise(cuts)]


def flattened(index: Sequence[tirx.PrimExpr], dims: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The position of ``index`` in a row-major block of ``dims``."""
    position: tirx.PrimExpr = _ZERO
    for entry, dim in zip(index, dims, strict=True):
        position = position * dim + entry
    return position


def unflattened(position: tirx.PrimExpr, dims: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
    """The index in a row-major block of ``dims`` that lies at ``position``."""
    index: list[tirx.PrimExpr] = []
    for dim in reversed(dims[1:]):
        index.insert(0, tirx.floormod(position, dim))
        position = tirx.floordiv(position, dim)
    return [position, *index]


def _piece_source(
    graph: Graph, space: IndexSpace, item: relax.TupleGetItem, index: Index
) -> tuple[relax.Expr, Index] | None:
    """As :func:`view_source`, for one piece of a ``split``."""
    call = graph.call(item.tuple_value, "relax.split")
    if call is None or known_dims(call.args[0].struct_info) is None:
        return None
    axis = int(call.attrs.axis) % len(index)
    sections = call.attrs.indices_or_sections
    if isinstance(sections, (int, tirx.IntImm)):
        start = tirx.floordiv(shape(call.args[0])[axis] + int(sections) - 1, int64(int(sections))) * item.index
    else:
        start = int64(0) if item.index == 0 else int64(int(sections[item.index - 1]))
    return call.args[0], space.simplified((*index[:axis], index[axis] + start, *index[axis + 1 :]))


def _joined_source(graph: Graph, space: IndexSpace, call: relax.Call, index: Index) -> tuple[relax.Expr, Index] | None:
    """As :func:`view_source`, for a concatenation: the one of its pieces in which all of ``index`` lies."""
    pieces = graph.value(call.args[0])
    if not isinstance(pieces, relax.Tuple) or call.attrs.axis is None:
        return None
    axis, begin = int(call.attrs.axis) % len(index), int64(0)
    for piece in pieces.fields:
        dims = known_dims(piece.struct_info)
        if dims is None:
            return None
        position = space.analyzer.simplify(index[axis] - begin)
        if space.within(position, dims[axis]):
            return piece, space.simplified((*index[:axis], position, *index[axis + 1 :]))
        begin = begin + dims[axis]
    return None


_VIEWS: Mapping[str, Callable[[relax.Call, Index, IndexSpace], Index | None]] = {
    "relax.permute_dims": _permuted,
    "relax.expand_dims": _expanded,
    "relax.squeeze": _squeezed,
    "relax.broadcast_to": _broadcast,
    "relax.reshape": _reshaped,
    "relax.flatten": _reshaped,
    "relax.repeat": _repeated,
    "relax.tile": _tiled,
    "relax.strided_slice": _sliced,
    "relax.nn.pad": _padded,
}
