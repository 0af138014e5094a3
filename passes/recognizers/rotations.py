"""Which heads are turned by which tables, told by the elements of the result, in whatever way it is put together.

Of two channels ``x1`` and ``x2``, the first becomes ``x1 * cos - x2 * sin``, the second ``x2 * cos + x1 * sin``. They
may be put together as halves of a concatenation or in one sum over the whole head; come from slices, pieces, stacks or
rolls; and be negated by a subtraction, a negation or a factor of ±1. Channels behind the last pair may stay as they
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Literal

from tvm import relax, tirx
from tvm.relax.expr import _update_struct_info

from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, is_floating, shape, static
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, flattened, view_source

Pairs = Literal["halves", "neighbours"]

_SHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.astype", "relax.flatten")


@dataclass(frozen=True)
class Turned:
    """``x`` with ``pairs`` of the first ``channels`` in each head turned by ``cos`` and ``sin [..., channels]``."""

    x: relax.Expr
    cos: relax.Expr
    sin: relax.Expr
    pairs: Pairs
    channels: int


@dataclass(frozen=True)
class _Element:
    """What ``expr`` shows at ``index``."""

    expr: relax.Expr
    index: Index


@dataclass(frozen=True)
class _Factor:
    """A number times ±1: every tensor, from the outermost on, that shows it, and where."""

    views: tuple[_Element, ...]
    sign: int


@dataclass(frozen=True)
class _Term:
    """A product of two numbers."""

    factors: tuple[_Factor, _Factor]
    sign: int


def rotation(graph: Graph, var: relax.Var) -> Turned | None:
    """How ``var [batch, ., ., channels]`` was made by turning pairs of channels, if it was."""
    if not has_known_shape(var) or len(shape(var)) != 4 or not _is_joined_or_added(graph, var):
        return None
    channels = _turned_channels(graph, var)
    if channels is None or channels % 2 or channels == 0:
        return None
    for pairs in ("halves", "neighbours"):
        reader = _Reader(graph, IndexSpace.of(graph), dtype(var))
        if (found := _of_pairs(reader, var, channels // 2, pairs)) is not None:
            return found
    return None


def _turned_channels(graph: Graph, var: relax.Var) -> int | None:
    """How many of the first channels may be turned: those before a last part that is no sum of products, or all."""
    joined = graph.call(graph.through(var, "relax.astype"), "relax.concat")
    if joined is not None and int(joined.attrs.axis) % 4 == 3:
        *_, last = graph.value(joined.args[0]).fields
        rest = static(shape(last)[-1]) if has_known_shape(last) else None
        if not _is_joined_or_added(graph, last):
            size = static(shape(var)[-1])
            return None if rest is None or size is None else size - rest
    return static(shape(var)[-1])


def _is_joined_or_added(graph: Graph, expr: relax.Expr) -> bool:
    """Whether it may be worth looking at single elements: a sum of products, or parts of which the first is one."""
    expr = graph.through(expr, *_SHAPES)
    if (joined := graph.call(expr, "relax.concat")) is None:
        return _is_sum_of_products(graph, expr)
    parts = graph.value(joined.args[0])
    return (
        isinstance(parts, relax.Tuple) and joined.attrs.axis is not None and _is_joined_or_added(graph, parts.fields[0])
    )


def _is_sum_of_products(graph: Graph, expr: relax.Expr) -> bool:
    total = graph.call(expr, "relax.add", "relax.subtract")
    return total is not None and all(
        graph.call(graph.through(term, "relax.negative", *_SHAPES), "relax.multiply") is not None for term in total.args
    )


def _of_pairs(reader: _Reader, var: relax.Var, half: int, pairs: Pairs) -> Turned | None:
    *lead_dims, _ = shape(var)
    lead = tuple(reader.space.variable(f"i{axis}", dim) for axis, dim in enumerate(lead_dims))
    channel = reader.space.variable("channel", half)
    first, second = (channel, channel + half) if pairs == "halves" else (channel * 2, channel * 2 + 1)
    places = [(*lead, reader.space.analyzer.simplify(place)) for place in (first, second)]
    terms = [reader.terms(var, place) for place in places]
    if terms[0] is None or terms[1] is None:
        return None
    size = static(shape(var)[-1]) or 0
    rest = () if size == 2 * half else ((*lead, reader.space.variable("rest", size - 2 * half) + 2 * half),)
    stays = [reader.factor(var, place) for place in rest]
    # Of either channel: the product with its own cosine before the one with the sine, and in each the heads first.
    for mine, other in product(permutations(terms[0]), permutations(terms[1])):
        for flips in product((0, 1), repeat=4):
            heads, tables = zip(
                *(
                    (term.factors[flip], term.factors[1 - flip])
                    for term, flip in zip((*mine, *other), flips, strict=True)
                ),
                strict=True,
            )
            signs = [
                term.sign * head.sign * table.sign
                for term, head, table in zip((*mine, *other), heads, tables, strict=True)
            ]
            if signs != [1, -1, 1, 1]:
                continue
            x = reader.heads((*heads, *stays), (places[0], places[1], places[1], places[0], *rest), var)
            if x is None:
                continue
            cos, sin = (reader.table((tables[i], tables[i + 2]), places, (*lead, channel), half, pairs) for i in (0, 1))
            if cos is not None and sin is not None:
                return Turned(x, cos, sin, pairs, 2 * half)
    return None


@dataclass(frozen=True)
class _Reader:
    """Reads elements of a graph's tensors; what is computed on the way is ``result``'s dtype or float32."""

    graph: Graph
    space: IndexSpace
    result: str

    def terms(self, expr: relax.Expr, index: Index) -> tuple[_Term, _Term] | None:
        """The two products that are added up to ``expr`` at ``index``."""
        for element in self._views(_Element(expr, index), rounds=True):
            total = self.graph.call(element.expr, "relax.add", "relax.subtract")
            if total is None:
                continue
            operands = [self._operand(operand, element.index) for operand in total.args]
            left, right = (self._term(operand) for operand in operands)
            if left is None or right is None:
                return None
            difference = self.graph.call(total, "relax.subtract") is not None
            return left, (_Term(right.factors, -right.sign) if difference else right)
        return None

    def factor(self, expr: relax.Expr, index: Index) -> _Factor:
        """What ``expr`` shows at ``index`` if nothing is computed there, nor rounded but to the result's dtype."""
        return _Factor(tuple(self._views(_Element(expr, index), rounds=True)), 1)

    def _operand(self, expr: relax.Expr, index: Index) -> _Element:
        return _Element(expr, broadcast_index(index, shape(expr)))

    def _term(self, element: _Element) -> _Term | None:
        """``element`` as a product of two numbers that are not ±1 by themselves."""
        sign = 1
        while True:
            *_, element = self._views(element, rounds=True)
            if (negated := self.graph.call(element.expr, "relax.negative")) is not None:
                sign, element = -sign, _Element(negated.args[0], element.index)
                continue
            if (times := self.graph.call(element.expr, "relax.multiply")) is None:
                return None
            operands = [self._operand(operand, element.index) for operand in times.args]
            units = [self._unit(operand) for operand in operands]
            if units == [None, None]:
                return _Term((self._factor(operands[0]), self._factor(operands[1])), sign)
            known = 0 if units[0] is not None else 1
            sign, element = sign * (units[known] or 0), operands[1 - known]

    def _factor(self, element: _Element) -> _Factor:
        views, sign = [], 1
        while True:
            seen = list(self._views(element, rounds=False))
            views += seen
            element = seen[-1]
            if (negated := self.graph.call(element.expr, "relax.negative")) is not None:
                sign, element, views = -sign, _Element(negated.args[0], element.index), []
                continue
            if (times := self.graph.call(element.expr, "relax.multiply")) is None:
                return _Factor(tuple(views), sign)
            operands = [self._operand(operand, element.index) for operand in times.args]
            units = [self._unit(operand) for operand in operands]
            if units == [None, None]:
                return _Factor(tuple(views), sign)
            known = 0 if units[0] is not None else 1
            sign, element, views = sign * (units[known] or 0), operands[1 - known], []

    def _views(self, element: _Element, rounds: bool) -> Iterator[_Element]:
        """``element`` and, one by one, what it is a view of; through casts that lose nothing, or that round."""
        while True:
            yield element
            if rounds and dtype(element.expr) not in (self.result, "float32"):
                return
            call = self.graph.call(element.expr, "relax.astype")
            if call is not None:
                source = call.args[0]
                if rounds and not is_floating(dtype(source)):
                    return
                if not rounds and self.graph.before_widening(element.expr, dtype(source)) is None:
                    return
                element = _Element(source, element.index)
            elif (seen := view_source(self.graph, self.space, element.expr, element.index)) is not None:
                element = _Element(*seen)
            else:
                return

    def _unit(self, element: _Element) -> int | None:
        """1 or -1 where ``element`` is known to be that."""
        sign = 1
        while True:
            *_, element = self._views(element, rounds=False)
            call = self.graph.call(element.expr, "relax.negative", "relax.astype")
            if call is None:
                break
            if self.graph.call(call, "relax.negative") is not None:
                sign = -sign
            element = _Element(call.args[0], element.index)
        number = self.graph.constant(element.expr)
        return sign * int(number) if number in (1, -1) else None

    def heads(self, factors: Sequence[_Factor], places: Sequence[Index], var: relax.Var) -> relax.Expr | None:
        """The tensor like ``var`` that shows ``factors`` at ``places``, if there is one."""
        # First those of the result's own dtype, which a kernel reads, whatever they are widened to on the way.
        views = sorted(factors[0].views, key=lambda view: self.graph.before_widening(view.expr, self.result) is None)
        for first in views:
            for swaps in (False, True):
                if all(
                    any(
                        self.graph.same(first.expr, view.expr) and self._shows_head(view, place, var, swaps)
                        for view in factor.views
                    )
                    for factor, place in zip(factors, places, strict=True)
                ):
                    return self._as_heads(first.expr, var, swaps)
        return None

    def _shows_head(self, view: _Element, place: Index, var: relax.Var, swaps: bool) -> bool:
        """Whether ``view`` shows ``place`` of a tensor like ``var``, whose last axis may be two here."""
        dims, lead = shape(view.expr), (place[0], place[2], place[1]) if swaps else place[:3]
        if len(dims) not in (4, 5) or not self._equal(view.index[:3], lead):
            return False
        extents = (shape(var)[0], shape(var)[2], shape(var)[1]) if swaps else shape(var)[:3]
        whole = all(map(self.graph.equal, dims[:3], extents))
        channel, size = flattened(view.index[3:], dims[3:]), flattened([d - 1 for d in dims[3:]], dims[3:]) + 1
        return whole and self.space.equal(channel, place[3]) and self.graph.equal(size, shape(var)[3])

    def _as_heads(self, expr: relax.Expr, var: relax.Var, swaps: bool) -> relax.Expr:
        batch, one, two, size = shape(var)
        if len(shape(expr)) == 5:
            dims = (batch, two, one, size) if swaps else (batch, one, two, size)
            expr = _typed(relax.op.reshape(expr, dims), dims, dtype(expr))
        return _typed(relax.op.permute_dims(expr, [0, 2, 1, 3]), shape(var), dtype(expr)) if swaps else expr

    def table(
        self, factors: Sequence[_Factor], places: Sequence[Index], pair: Index, half: int, pairs: Pairs
    ) -> relax.Expr | None:
        """The table for whole heads of what ``factors`` are for the first and the second channels of ``pair``."""
        for view in factors[0].views:
            whole = self._broadcast(view, places[0], 2 * half)
            if whole is not None and any(
                self.graph.same(view.expr, other.expr) and self._broadcast(other, places[1], 2 * half) is not None
                for other in factors[1].views
            ):
                return whole
        parts = [
            next((table for view in factor.views if (table := self._broadcast(view, pair, half)) is not None), None)
            for factor in factors
        ]
        if parts[0] is None or parts[1] is None:
            return None
        narrow = [self.graph.before_widening(part) or part for part in parts]
        first, second = narrow if dtype(narrow[0]) == dtype(narrow[1]) else parts
        if dtype(first) != dtype(second) or not self.graph.same_shape(shape(first), shape(second)):
            return None
        last, dims = len(shape(first)) - 1, (*shape(first)[:-1], 2 * half)
        if pairs == "halves":
            return _typed(relax.op.concat([first, second], last), dims, dtype(first))
        if self.graph.alike(first, second):
            return _typed(relax.op.repeat(first, 2, last), dims, dtype(first))
        paired = (*shape(first), 1)
        columns = [_typed(relax.op.expand_dims(part, last + 1), paired, dtype(part)) for part in (first, second)]
        stacked = _typed(relax.op.concat(columns, last + 1), (*shape(first), 2), dtype(first))
        return _typed(relax.op.reshape(stacked, dims), dims, dtype(first))

    def _broadcast(self, view: _Element, place: Index, size: int) -> relax.Expr | None:
        """The tensor of ``view`` as a table that broadcasts to the heads, if it shows ``place`` of that."""
        dims, (batch, one, two, channel) = shape(view.expr), place
        if not 1 <= len(dims) <= 4 or static(dims[-1]) != size:
            return None
        if self._equal(view.index, broadcast_index(place, dims)):
            return view.expr
        for at, heads in (((batch, one, channel), 2), ((batch, two, channel), 1)):
            if len(dims) in (2, 3) and self._equal(view.index, broadcast_index(at, dims)):
                axes = [tirx.IntImm("int64", 1)] * (3 - len(dims)) + list(dims)
                axes.insert(heads, tirx.IntImm("int64", 1))
                return _typed(relax.op.reshape(view.expr, axes), axes, dtype(view.expr))
        return None

    def _equal(self, left: Index, right: Index) -> bool:
        return len(left) == len(right) and all(map(self.space.equal, left, right))


def _typed(expr: relax.Expr, dims: Sequence[tirx.PrimExpr | int], name: str) -> relax.Expr:
    """``expr``, a new one that no variable holds, with its type."""
    _update_struct_info(expr, relax.TensorStructInfo(dims, name))
    return expr
