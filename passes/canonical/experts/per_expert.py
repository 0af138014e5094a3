"""What is computed alike for all experts, or for all choices of a token: its rows, and what they are of.

A per-expert value is as many expressions as there are experts, or one with an axis for experts, or one with a row for
each choice of each token. Here is what shows without its operator: that it is the same for all experts, that it
is the weights of chosen experts, and what it is a view of. :mod:`.per_expert_reader` reads what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvm import relax, tirx

from tkc.passes.canonical.experts.nodes import Chosen, Copies, Node, Rows, Shared, Weighted
from tkc.passes.canonical.experts.routing import Routing, Routings
from tkc.passes.graph.bindings import dtype, known_dims, shape, static
from tkc.passes.graph.index_bounds import index_bound
from tkc.passes.graph.layout import product
from tkc.passes.graph.views import flattened, int64, view_source

Kind = Literal["experts", "axis", "choices"]
"""Of per-expert values: one for each expert, one with an axis for experts, or one with a row for each choice."""


class Unlike(Exception):
    """What is read is not computed alike for all experts, or not of each row alone."""


@dataclass(frozen=True)
class PerExpert:
    """``values`` of experts, or one with an ``axis`` for them; without it, with a row for each choice."""

    values: tuple[relax.Expr, ...]
    axis: int | None = None


class PerExpertValues:
    """Per-expert values of one kind, of ``tokens`` tokens, each with ``top_k`` of ``num_experts`` experts.

    ``indices`` are the choices; where they are not known before, the first routing that is found tells them.
    """

    def __init__(
        self,
        routings: Routings,
        kind: Kind,
        tokens: tirx.PrimExpr,
        num_experts: int,
        top_k: int | None = None,
    ) -> None:
        self.graph, self._routings, self._kind = routings.graph, routings, kind
        self.tokens, self.num_experts, self.top_k = tokens, num_experts, top_k
        self.indices: relax.Expr | None = None

    def choose(self, found: Routing) -> None:
        """Take the choices that ``found`` is of; they must be those of what was read before."""
        if self.indices is None:
            bound = index_bound(self.graph, found.indices)
            if bound is None or bound > self.num_experts or static(shape(found.indices)[-1]) is None:
                raise Unlike
            self.indices, self.top_k = found.indices, static(shape(found.indices)[-1])
        if not self.graph.same(self.indices, found.indices):
            raise Unlike

    def _leaf(self, per_expert: PerExpert) -> Node:
        """In the order of choices, any rows can be read."""
        value = per_expert.values[0]
        dims = shape(value)
        if self._kind == "choices" and len(dims) > 1 and self._is_count(dims[:-1], self._copies):
            return Weighted(value) if static(dims[-1]) == 1 else Copies(value)
        raise Unlike

    @property
    def _copies(self) -> tirx.PrimExpr:
        return self.tokens * (self.top_k or 1)

    def _is_count(self, dims: Sequence[tirx.PrimExpr], count: tirx.PrimExpr) -> bool:
        return self.graph.equal(product(dims), count)

    def _rows(self, per_expert: PerExpert) -> tuple[tirx.PrimExpr, ...]:
        """The axes for rows, without that for experts; a list has no other."""
        dims = shape(per_expert.values[0])
        if per_expert.axis is not None:
            dims = (*dims[: per_expert.axis], *dims[per_expert.axis + 1 :])
        return tuple(dims) if len(dims) == 1 else tuple(dims[:-1])

    def _routing(self, per_expert: PerExpert) -> Node | None:
        """The weights of chosen experts."""
        dims = shape(per_expert.values[0])
        if self._kind == "choices" or (len(dims) > 1 and static(dims[-1]) != 1) or not dims:
            return None
        if not self._is_count(self._rows(per_expert), self.tokens):
            return None
        found = None
        for number, value in enumerate(per_expert.values):
            index, token, expert = self._place(value, per_expert.axis)
            found = self._routings.element(value, index, token)
            expected = int64(number) if expert is None else expert
            if found is None or found.weights is None or not self._routings.space.equal(found.expert, expected):
                return None
            self.choose(found)
        return None if found is None or found.weights is None else Chosen(found.weights)

    def _place(
        self, value: relax.Expr, axis: int | None
    ) -> tuple[tuple[tirx.PrimExpr, ...], tirx.PrimExpr, tirx.PrimExpr | None]:
        """An index into a column of weights, the number of its token, and, if there is an axis, its expert."""
        dims = shape(value)
        index = tuple(self._routings.space.variable(f"i{place}", dim) for place, dim in enumerate(dims))
        rows = [place for place in range(len(dims)) if place != axis]
        token = flattened([index[place] for place in rows], [dims[place] for place in rows])
        return index, token, None if axis is None else index[axis]

    def _independent(self, per_expert: PerExpert) -> Node | None:
        """What is the same for all experts."""
        value, dims = per_expert.values[0], shape(per_expert.values[0])
        if per_expert.axis is not None:
            if static(dims[per_expert.axis]) != 1:
                return None
            dims = (*dims[: per_expert.axis], *dims[per_expert.axis + 1 :])
        elif not all(self.graph.same(value, other) for other in per_expert.values):
            return None
        elif self._kind == "choices" and not self._is_count(dims[:-1], self.tokens):
            return self._shared(value, dims)
        return self._shared(value, dims) or self._of_tokens(value, dims)

    def _shared(self, value: relax.Expr, dims: Sequence[tirx.PrimExpr]) -> Node | None:
        constant = self.graph.constant(value)
        if constant is not None:
            return Shared(relax.const(constant, dtype(value)))
        if all(static(dim) == 1 for dim in dims[:-1]) and len(dims) != 1:
            return Shared(value if not dims else relax.op.reshape(value, (dims[-1],)))
        return None

    def _of_tokens(self, value: relax.Expr, dims: Sequence[tirx.PrimExpr]) -> Node | None:
        if len(dims) == 1:
            return Rows(value) if self.graph.equal(dims[0], self.tokens) else None
        return Rows(value) if self._is_count(dims[:-1], self.tokens) else None

    def _path(
        self, per_expert: PerExpert, value: relax.Expr
    ) -> list[tuple[relax.Expr, int | Literal["tokens"] | None] | None]:
        """What ``value`` is a view of, step by step, with the axis for experts there, or ``tokens`` if it has rows for
        tokens alone; ``None`` where rows or channels are not whole.
        """
        space, dims = self._routings.space, shape(value)
        index = tuple(space.variable(f"p{axis}", dim) for axis, dim in enumerate(dims))
        expert = None if per_expert.axis is None else index[per_expert.axis]
        is_column = static(dims[-1]) == 1 or len(self._rows(per_expert)) == len(dims) - (per_expert.axis is not None)
        lead = [axis for axis in range(len(dims) if is_column else len(dims) - 1) if axis != per_expert.axis]
        row = flattened([index[axis] for axis in lead], [dims[axis] for axis in lead])
        path: list[tuple[relax.Expr, int | Literal["tokens"] | None] | None] = []
        expr, place = value, index
        while (source := view_source(self.graph, space, expr, place)) is not None:
            expr, place = source
            own = known_dims(expr.struct_info)
            if own is None or len(own) != len(place):
                break
            path.append(self._at(expr, place, own, row, expert, None if is_column else (index[-1], dims[-1])))
        return path

    def _at(
        self,
        expr: relax.Expr,
        place: tuple[tirx.PrimExpr, ...],
        dims: tuple[tirx.PrimExpr, ...],
        row: tirx.PrimExpr,
        expert: tirx.PrimExpr | None,
        channel: tuple[tirx.PrimExpr, tirx.PrimExpr] | None,
    ) -> tuple[relax.Expr, int | Literal["tokens"] | None] | None:
        """One step of :meth:`_path`."""
        equal = self._routings.space.equal
        axes = list(range(len(dims)))
        if channel is not None:
            if len(dims) < 2 or not (equal(place[-1], channel[0]) and equal(dims[-1], channel[1])):
                return None
            axes.pop()
        elif len(dims) > 1 and static(dims[-1]) != 1 and self._kind == "choices":
            return None
        own = [
            axis
            for axis in axes
            if expert is not None and static(dims[axis]) == self.num_experts and equal(place[axis], expert)
        ]
        rest = [axis for axis in axes if axis not in own[:1]]
        if channel is None and own[:1] != [len(dims) - 1] and len(rest) > 1 and static(dims[-1]) != 1:
            return None
        position = flattened([place[axis] for axis in rest], [dims[axis] for axis in rest])
        if equal(position, row):
            return expr, (own[0] if own else "tokens" if expert is not None else None)
        if self._kind == "choices" and equal(position, tirx.floordiv(row, int64(self.top_k or 1))):
            return expr, "tokens"
        return None
