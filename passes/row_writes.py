"""Reads a new value of a tensor as the old one with some elements written."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tvm import arith, relax, tirx
from tvm.arith.iter_affine_map import IterMapLevel
from tvm.ir import Range

from tkc.passes.graph import Graph, known_dims, shape, static
from tkc.passes.index_expressions import IndexExpressions
from tkc.passes.views import Index, int64

Loops = tuple[tuple[tirx.Var, tirx.PrimExpr], ...]
"""Variables that count from zero, each with its extent."""


class NotWritten(Exception):
    """A value is not the old one with elements written: all of it is computed, or old elements move."""


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
    if known_dims(old.struct_info) is None or graph.call(new, "relax.concat", "relax.scatter_elements", *_VIEWS) is None:
        raise NotWritten
    reader = _Reader(graph, old)
    index, loops = reader.loops(shape(old))
    return reader.writes(_Part(loops, index, Element(new, index)))


_VIEWS = ("relax.reshape", "relax.permute_dims", "relax.expand_dims", "relax.squeeze")


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

    def loops(self, dims: Sequence[tirx.PrimExpr]) -> tuple[Index, Loops]:
        """An index that runs over all of a tensor of ``dims``, and its loops."""
        index = tuple(self._space.variable(f"i{axis}", dim) for axis, dim in enumerate(dims))
        return index, tuple((var, dim) for var, dim in zip(index, dims, strict=True) if isinstance(var, tirx.Var))

    def writes(self, part: _Part) -> list[Write]:
        """What must be written for ``part`` to hold."""
        source = part.source
        while (earlier := self._expressions.source(source.tensor, source.index)) is not None:
            source = Element(*earlier)
        part = replace(part, source=source)
        if self._graph.same(source.tensor, self._old):
            if all(map(self._space.equal, source.index, part.target)):
                return []
            raise NotWritten
        if (concat := self._graph.call(source.tensor, "relax.concat")) is not None:
            return self._of_pieces(part, concat)
        scatter = self._graph.call(source.tensor, "relax.scatter_elements")
        if scatter is not None and scatter.attrs.reduction == "update":
            return self._of_scatter(part, scatter)
        return [Write(part.loops, part.target, self._origin(source))]

    def _origin(self, element: Element) -> Element:
        """``element`` where views of another tensor than the old one took it from."""
        while (earlier := self._expressions.source(element.tensor, element.index)) is not None:
            if self._graph.same(earlier[0], self._old):
                break
            element = Element(*earlier)
        if self._graph.same(element.tensor, self._old):  # which changes while it is read
            raise NotWritten
        return element

    def _of_pieces(self, part: _Part, call: relax.Call) -> list[Write]:
        axis = int(call.attrs.axis) % call.struct_info.ndim
        found, offset = [], int64(0)
        for piece in call.args[0].fields:
            if known_dims(piece.struct_info) is None:
                raise NotWritten
            size = shape(piece)[axis]
            inside = self._inside(part, axis, offset, size)
            if inside is not None:
                found += self.writes(replace(inside, source=Element(piece, inside.source.index)))
            offset += size
        return found

    def _inside(self, part: _Part, axis: int, offset: tirx.PrimExpr, size: tirx.PrimExpr) -> _Part | None:
        """``part`` where its source's index is one of the ``size`` from ``offset`` on along ``axis``, counted from there.

        ``None`` where it nowhere is.
        """
        index = part.source.index
        place = index[axis]
        if isinstance(place, tirx.Var):  # a loop over the whole axis
            inner = self._space.variable(place.name, size)
            values = {place: inner + offset}
            loops = tuple((inner, size) if var.same_as(place) else (var, extent) for var, extent in part.loops)
            moved = (*index[:axis], inner, *index[axis + 1 :])
            kept = tuple(loop for loop in loops if isinstance(loop[0], tirx.Var))
            return _Part(kept, _at(part.target, values), Element(part.source.tensor, moved))
        if self._space.analyzer.can_prove(tirx.any(place < offset, place >= offset + size)):
            return None
        if not self._space.within(place - offset, size):
            raise NotWritten
        moved = self._space.simplified((*index[:axis], place - offset, *index[axis + 1 :]))
        return replace(part, source=Element(part.source.tensor, moved))

    def _of_scatter(self, part: _Part, call: relax.Call) -> list[Write]:
        data, indices, values = call.args
        if any(known_dims(tensor.struct_info) is None for tensor in call.args):
            raise NotWritten
        before = self.writes(replace(part, source=Element(data, part.source.index)))
        axis = int(call.attrs.axis) % data.struct_info.ndim
        row = self._space.variable("row", shape(data)[axis])
        index, loops = self.loops(shape(indices))
        target = _at(part.target, self._inverse(part, shape(data), (*index[:axis], row, *index[axis + 1 :])))
        source = self._origin(Element(values, index))
        if not isinstance(row, tirx.Var):
            return [*before, Write(loops, self._space.simplified(target), source)]
        position = self._origin(Element(indices, index))
        return [*before, Write(loops, self._space.simplified(target), source, row, position)]

    def _inverse(self, part: _Part, dims: Sequence[tirx.PrimExpr], place: Index) -> Mapping[tirx.Var, tirx.PrimExpr]:
        """What the loops of ``part`` are where its source's index is ``place``.

        :class:`NotWritten` where they do not reach each element of a source of ``dims``, and each once.
        """
        ranges = {var: Range(int64(0), extent) for var, extent in part.loops}
        reached = _product(extent for _, extent in part.loops)
        found = arith.detect_iter_map(part.source.index, ranges, check_level=IterMapLevel.Bijective)
        if not found.indices or not self._space.equal(reached, _product(dims)):
            raise NotWritten
        return arith.inverse_affine_iter_map(found.indices, list(place))


def _product(sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    return reduce(operator.mul, sizes, int64(1))


def _at(index: Index, values: Mapping[tirx.Var, tirx.PrimExpr]) -> Index:
    return tuple(tirx.stmt_functor.substitute(entry, values) for entry in index)
