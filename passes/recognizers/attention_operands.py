"""Finds the tensor that an attention kernel can read in place of queries, keys, values or a mask of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tvm import relax, tirx

from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape, static
from tkc.passes.graph.index_expressions import IndexExpressions
from tkc.passes.graph.views import Index, IndexSpace, int64, unflattened
from tkc.passes.recognizers.masks import ScorePositions

Layout = Literal["bshd", "bhsd"]
_LAYOUTS: tuple[Layout, ...] = ("bshd", "bhsd")


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor that is looked for: its index, and its size."""

    index: tirx.PrimExpr
    size: tirx.PrimExpr


@dataclass(frozen=True)
class Geometry:
    """The sizes of one attention, and an index variable for each: batch, heads, queries, keys."""

    expressions: IndexExpressions
    b: Axis
    h: Axis
    q: Axis
    k: Axis

    @classmethod
    def of(
        cls, graph: Graph, batch: tirx.PrimExpr, heads: int, queries: tirx.PrimExpr, keys: tirx.PrimExpr
    ) -> Geometry:
        """Fresh index variables over these sizes."""
        expressions = IndexExpressions(graph)
        sizes = {"b": batch, "h": int64(heads), "q": queries, "k": keys}
        return cls(expressions, **{name: new_axis(expressions.space, name, size) for name, size in sizes.items()})

    @property
    def space(self) -> IndexSpace:
        """Where the index variables live."""
        return self.expressions.space

    @property
    def graph(self) -> Graph:
        """The graph that the attention is in."""
        return self.expressions.graph

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.h.size)

    @cached_property
    def positions(self) -> ScorePositions:
        """What masks are judged by."""
        return ScorePositions(self.space, self.q.index, self.k.index, self.q.size, self.k.size)

    def leading(self, dims: tuple[tirx.PrimExpr, ...]) -> Index:
        """The index of this batch and head in axes of ``dims``: none, one for both, or batch, then heads."""
        if len(dims) < 2:
            return self.space.simplified([self.b.index * self.heads + self.h.index] * len(dims))
        return self.space.simplified([self.b.index, *unflattened(self.h.index, dims[1:])])


def new_axis(space: IndexSpace, name: str, size: tirx.PrimExpr) -> Axis:
    """An axis with a fresh index variable."""
    return Axis(space.variable(name, size), size)


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values as a kernel reads them: ``value`` in ``layout`` with ``heads``, times ``factor``."""

    value: relax.Expr
    layout: Layout
    heads: int
    factor: float


def operands(
    geometry: Geometry, expr: relax.Expr, index: Index, sequence: Axis, size: Axis, name: str
) -> list[Operand]:
    """Tensors of dtype ``name`` that hold what ``expr`` holds at ``index``, the earliest of them last.

    From ``expr`` back through views, repetitions of heads, products with constants and lossless casts: each tensor
    whose axes are batch, sequence, heads (or heads, sequence) and size.
    """
    found = []
    for value, place, factor in origins(geometry, expr, index):
        fits = (_fitted(geometry, value, place, layout, sequence, size) for layout in _LAYOUTS)
        fit = next((fit for fit in fits if fit is not None), None)
        if fit is not None and dtype(value) == name:
            found.append(replace(fit, factor=factor))
    return found


def origins(geometry: Geometry, expr: relax.Expr, index: Index) -> Iterator[tuple[relax.Expr, Index, float]]:
    """Each tensor whose element at an index, times a factor, is that of ``expr`` at ``index``, the earliest last."""
    graph, factor = geometry.graph, 1.0
    while known_dims(expr.struct_info) is not None:
        yield expr, index, factor
        if (source := geometry.expressions.source(expr, index)) is not None:
            expr, index = source
        elif (scaled := constant_factor(graph, expr)) is not None:
            expr, factor = scaled[0], factor * scaled[1]
        elif (cast := graph.call(expr, "relax.astype")) is not None and _is_lossless(graph, cast):
            expr = cast.args[0]
        else:
            return


def _is_lossless(graph: Graph, cast: relax.Call) -> bool:
    return graph.before_widening(cast, dtype(cast.args[0])) is not None


def constant_factor(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """The tensor and the number that ``expr`` is the product (or quotient) of, if it is one of the tensor's shape."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    left, right = call.args
    if (number := graph.constant(right)) is not None and number != 0:
        kept, factor = left, (number if call.op.name == "relax.multiply" else 1 / number)
    elif call.op.name == "relax.multiply" and (number := graph.constant(left)) is not None:
        kept, factor = right, number
    else:
        return None
    dims = known_dims(kept.struct_info)
    return None if dims is None or len(dims) != call.struct_info.ndim else (kept, float(factor))


def _fitted(
    geometry: Geometry, value: relax.Expr, index: Index, layout: Layout, sequence: Axis, size: Axis
) -> Operand | None:
    """``value`` with the four axes of ``layout``, if its axes are these.

    Axes of one may be missing, batch and heads, where neighbours, be one, and heads be two: groups and their heads.
    """
    for heads in (count for count in range(geometry.heads, 0, -1) if geometry.heads % count == 0):
        head = tirx.floordiv(geometry.h.index, int64(geometry.heads // heads))
        axes = {"b": geometry.b, "s": sequence, "h": Axis(head, int64(heads)), "d": size}
        four = [axes[letter] for letter in layout]
        folded = [Axis(geometry.b.index * heads + head, geometry.b.size * heads), sequence, size]
        possible = [four, *([folded] if layout == "bhsd" else []), *_grouped(value, layout, axes)]
        if any(aligned(geometry.space, value, index, form) is not None for form in possible):
            dims = [axis.size for axis in four]
            return Operand(value if len(shape(value)) == 4 else relax.op.reshape(value, dims), layout, heads, 1.0)
    return None


def _grouped(value: relax.Expr, layout: Layout, axes: dict[str, Axis]) -> list[list[Axis]]:
    """The ``axes`` of ``layout`` with two for the heads, as many in a group as ``value``, of five axes, has."""
    place = layout.index("h")
    size = static(shape(value)[place + 1]) if value.struct_info.ndim == 5 else None
    heads = axes["h"]
    if not size or int(heads.size) % size != 0:
        return []
    groups = Axis(tirx.floordiv(heads.index, int64(size)), int64(int(heads.size) // size))
    within = Axis(tirx.floormod(heads.index, int64(size)), int64(size))
    return [[axis for letter in layout for axis in ([groups, within] if letter == "h" else [axes[letter]])]]


def aligned(
    space: IndexSpace, value: relax.Expr, index: Index, axes: Sequence[Axis], broadcast: bool = False
) -> list[tirx.PrimExpr] | None:
    """The sizes of ``value``, read at ``index``, along ``axes``; ``None`` where its axes are not these in this order.

    An axis of one may be missing. With ``broadcast``, every axis may be missing, and axes of one may be anywhere.
    """
    found = [
        (size, entry) for size, entry in zip(shape(value), index, strict=True) if not (broadcast and static(size) == 1)
    ]
    sizes: list[tirx.PrimExpr] = []
    for axis in axes:
        if found and space.equal(found[0][0], axis.size) and space.equal(found[0][1], axis.index):
            sizes.append(found.pop(0)[0])
        elif broadcast or static(axis.size) == 1:
            sizes.append(int64(1))
        else:
            return None
    return None if found else sizes
