"""Reads a new value of a tensor as the old one with some elements written."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tvm import arith, relax, tirx
from tvm.arith.iter_affine_map import IterMapLevel
from tvm.ir import Range
from tvm.tirx.analysis import undefined_vars

from tkc.passes.graph.bindings import Graph, known_dims, shape
from tkc.passes.graph.index_expressions import IndexExpressions
from tkc.passes.graph.views import Index, int64

Loops = tuple[tuple[tirx.Var, tirx.PrimExpr], ...]
"""Variables that count from zero, each with its extent."""


class NotWritten(Exception):
    """A value is not the old one with elements written: all of it is computed."""


@dataclass(frozen=True)
class Element:
    """The element of ``tensor`` at ``index``."""

    tensor: relax.Expr
    index: Index


@dataclass(frozen=True)
class Write:
    """``source`` goes to ``target`` of the old tensor, for all values of ``loops``.

    ``row`` in ``target`` stands for the whole number that the element ``position`` holds, if there is one.
    """

    loops: Loops
    target: Index
    source: Element
    row: tirx.Var | None = None
    position: Element | None = None


def row_writes(graph: Graph, old: relax.Var, new: relax.Expr) -> list[Write]:
    """The writes that, one after the other, turn the tensor ``old`` into ``new``.

    Covers elements scattered by index tensors, and slices put between old ones, also where they are put into a view of
    the tensor. :class:`NotWritten` where ``new`` is anything else.
    """
    if known_dims(old.struct_info) is None:
        raise NotWritten
    return _Reader(graph, old).all_writes(new)


@dataclass(frozen=True)
class _Part:
    """The claim that the new tensor holds ``source`` at ``target``, for all values of ``loops``."""

    loops: Loops
    target: Index
    source: Element


class _Reader:
    """Finds out what of ``old`` must be written to make claims about its new value true."""

    def __init__(self, graph: Graph, old: relax.Var) -> None:
        self._graph = graph
        self._old = old
        self._expressions = IndexExpressions(graph)
        self._space = self._expressions.space

    def all_writes(self, new: relax.Expr) -> list[Write]:
        """What must be written for the old tensor to become ``new``."""
        index, loops = self._everywhere(shape(self._old))
        writes = self._writes(_Part(loops, index, Element(new, index)))
        whole = _product(extent for _, extent in loops)
        if any(self._space.equal(_product(extent for _, extent in write.loops), whole) for write in writes):
            raise NotWritten
        return [replace(write, target=self._space.simplified(write.target)) for write in writes]

    def _everywhere(self, dims: Sequence[tirx.PrimExpr]) -> tuple[Index, Loops]:
        """An index that runs over all of a tensor of ``dims``, and its loops."""
        index = tuple(self._space.variable(f"i{axis}", dim) for axis, dim in enumerate(dims))
        return index, tuple((var, dim) for var, dim in zip(index, dims, strict=True) if isinstance(var, tirx.Var))

    def _writes(self, part: _Part) -> list[Write]:
        """What must be written for ``part`` to hold."""
        computed = self._origin(part.source)
        source = self._expressions.source(computed.tensor, computed.index)
        tensor, index = (computed.tensor, computed.index) if source is None else source
        if self._is_old(tensor):
            if all(map(self._space.equal, index, part.target)):
                return []
            return [Write(part.loops, part.target, self._unchanging(computed))]
        part = replace(part, source=computed)
        if (concat := self._graph.call(computed.tensor, "relax.concat")) is not None:
            return self._of_pieces(part, concat)
        scatter = self._graph.call(computed.tensor, "relax.scatter_elements")
        if scatter is not None and scatter.attrs.reduction == "update":
            return self._of_scatter(part, scatter)
        return [Write(part.loops, part.target, computed)]

    def _origin(self, element: Element) -> Element:
        """``element`` where it was before views showed it, but not in the old tensor."""
        while (source := self._expressions.source(element.tensor, element.index)) is not None:
            if self._is_old(source[0]):
                break
            element = Element(*source)
        return element

    def _unchanging(self, element: Element) -> Element:
        """``element``, which must not be one of the old tensor: that changes while it is read."""
        if self._is_old(element.tensor):
            raise NotWritten
        return element

    def _is_old(self, tensor: relax.Expr) -> bool:
        return self._graph.same(tensor, self._old)

    def _of_pieces(self, part: _Part, call: relax.Call) -> list[Write]:
        axis = int(call.attrs.axis) % call.struct_info.ndim
        found, offset = [], int64(0)
        for piece in call.args[0].fields:
            if known_dims(piece.struct_info) is None:
                raise NotWritten
            size = shape(piece)[axis]
            inside = self._inside(part, axis, offset, size)
            if inside is not None:
                found += self._writes(replace(inside, source=Element(piece, inside.source.index)))
            offset += size
        return found

    def _inside(self, part: _Part, axis: int, offset: tirx.PrimExpr, size: tirx.PrimExpr) -> _Part | None:
        """Where ``part``'s source lies among the ``size`` elements from ``offset`` on along ``axis``, its index counted
        from there; ``None`` where it nowhere does.
        """
        index, analyzer = part.source.index, self._space.analyzer
        local = analyzer.simplify(index[axis] - offset)
        for var, extent in part.loops:
            shift = analyzer.simplify(local - var)
            if any(var.same_as(other) for other in undefined_vars(shift)):
                continue
            # The loop that runs along the axis: those of its turns that lie in the piece.
            first = analyzer.simplify(tirx.max(-shift, 0))
            turns = analyzer.simplify(tirx.min(extent, size - shift) - first)
            if analyzer.can_prove(turns <= 0):
                return None
            inner = self._space.variable(var.name, turns)
            part = _with_loop(part, var, inner, turns, inner + first)
            local = analyzer.simplify(inner + first + shift)
            break
        if analyzer.can_prove(tirx.any(local < 0, local >= size)):
            return None
        if not self._space.within(local, size):
            raise NotWritten
        index = part.source.index
        moved = self._space.simplified((*index[:axis], local, *index[axis + 1 :]))
        return replace(part, source=Element(part.source.tensor, moved))

    def _of_scatter(self, part: _Part, call: relax.Call) -> list[Write]:
        data, indices, values = call.args
        if any(known_dims(tensor.struct_info) is None for tensor in call.args):
            raise NotWritten
        before = self._writes(replace(part, source=Element(data, part.source.index)))
        axis = int(call.attrs.axis) % data.struct_info.ndim
        row = self._space.variable("row", shape(data)[axis])
        index, loops = self._everywhere(shape(indices))
        turn = self._inverse(part, shape(data), (*index[:axis], row, *index[axis + 1 :]))
        target = _at(part.target, turn)
        source = self._unchanging(self._origin(Element(values, index)))
        if not isinstance(row, tirx.Var):
            return [*before, Write(loops, target, source)]
        position = self._unchanging(self._origin(Element(indices, index)))
        return [*before, Write(loops, target, source, row, position)]

    def _inverse(self, part: _Part, dims: Sequence[tirx.PrimExpr], place: Index) -> Mapping[tirx.Var, tirx.PrimExpr]:
        """What the loops of ``part`` are where its source's index is ``place``.

        :class:`NotWritten` where they do not reach each element of a source of ``dims``, and each once.
        """
        ranges = {var: Range(int64(0), extent) for var, extent in part.loops}
        found = arith.detect_iter_map(part.source.index, ranges, check_level=IterMapLevel.Bijective)
        reached = _product(extent for _, extent in part.loops)
        if not found.indices or not self._space.equal(reached, _product(dims)):
            raise NotWritten
        loops: Mapping[tirx.Var, tirx.PrimExpr] = arith.inverse_affine_iter_map(found.indices, list(place))
        return loops


def _with_loop(part: _Part, var: tirx.Var, inner: tirx.PrimExpr, turns: tirx.PrimExpr, value: tirx.PrimExpr) -> _Part:
    """``part`` with ``turns`` of the loop ``inner`` in place of ``var``, which is ``value`` then."""
    loops = [(inner, turns) if old.same_as(var) else (old, extent) for old, extent in part.loops]
    kept = tuple(loop for loop in loops if isinstance(loop[0], tirx.Var))
    source = Element(part.source.tensor, _at(part.source.index, {var: value}))
    return _Part(kept, _at(part.target, {var: value}), source)


def _product(sizes: Iterable[tirx.PrimExpr]) -> tirx.PrimExpr:
    return reduce(operator.mul, sizes, int64(1))


def _at(index: Index, values: Mapping[tirx.Var, tirx.PrimExpr]) -> Index:
    return tuple(tirx.stmt_functor.substitute(entry, dict(values)) for entry in index)
