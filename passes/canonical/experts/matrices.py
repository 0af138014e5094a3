"""The tensors that hold experts' matrices: one for all experts, one for each, or one that rows are fetched from."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tkc.passes.canonical.experts.nodes import Layout
from tkc.passes.canonical.experts.per_expert import Unlike
from tkc.passes.canonical.experts.routing import Routings
from tkc.passes.graph.bindings import SHAPE_CHANGES, shape, static
from tkc.passes.graph.index_bounds import index_bound
from tkc.passes.graph.views import flattened, view_source


class Matrices:
    """Looks for the matrices of ``num_experts`` experts."""

    def __init__(self, routings: Routings, num_experts: int) -> None:
        self.graph, self._routings, self.num_experts = routings.graph, routings, num_experts

    def of_each(self, operands: Sequence[relax.Expr]) -> tuple[tuple[relax.Expr, ...], Layout]:
        """The experts' matrices ``[k, n]``, as one tensor or as one each, and which axis is first in those."""
        if (stacked := self.slices(operands, 2)) is not None:
            return (stacked[0],), stacked[1]
        sources: list[relax.Expr] = []
        layouts: set[Layout] = set()
        for operand in operands:
            moved = self.graph.call(operand, "relax.permute_dims")
            source = self.graph.value(operand if moved is None else moved.args[0])
            layouts.add("gkn" if moved is None else "gnk")
            if source not in self.graph.weights:
                raise Unlike  # to put them together at every call takes longer than it saves
            sources.append(source)
        if len(layouts) != 1 or len({tuple(map(static, shape(source))) for source in sources}) != 1:
            raise Unlike
        return tuple(sources), layouts.pop()

    def slices(self, operands: Sequence[relax.Expr], rank: int) -> tuple[relax.Expr, Layout] | None:
        """The tensor whose slices along the first axis the operands are."""
        space, found, layout = self._routings.space, None, "gkn"
        for number, operand in enumerate(operands):
            dims = shape(operand)
            index = tuple(space.variable(f"s{axis}", dim) for axis, dim in enumerate(dims))
            expr, place = operand, index
            while (
                len(place) != rank + 1
                or static(shape(expr)[0]) != self.num_experts
                or not space.equal(place[0], number)
            ):
                source = view_source(self.graph, space, expr, place)
                if source is None:
                    return None
                expr, place = source
            order = [
                [at for at in range(rank) if place[at + 1] is not None and space.equal(place[at + 1], each)]
                for each in index
            ]
            flat = [at[0] for at in order if at]
            if sorted(flat) != list(range(rank)):
                return None
            own = "gkn" if flat == list(range(rank)) else "gnk"
            if found is not None and (not self.graph.same(found, expr) or own != layout):
                return None
            found, layout = expr, own
        return None if found is None else (found, "gnk" if layout == "gnk" else "gkn")

    def fetched(
        self,
        expr: relax.Expr,
        index: tuple[tirx.PrimExpr, ...],
        copy: tirx.PrimExpr,
        k: tirx.PrimExpr,
        n: tirx.PrimExpr,
    ) -> tuple[relax.Expr, Layout, relax.Expr]:
        """The weights of all experts of which ``expr`` has, for a copy, those of its expert at ``index``.

        Also which of their axes is first, and the choices by which they are fetched.
        """
        space = self._routings.space
        while (take := self.graph.call(expr, "relax.take")) is None:
            source = view_source(self.graph, space, expr, index)
            if source is None:
                raise Unlike
            expr, index = source
        weight, indices = take.args
        if take.attrs.axis is None or int(take.attrs.axis) != 0 or len(shape(weight)) != 3:
            raise Unlike
        if static(shape(weight)[0]) != self.num_experts or not space.equal(flattened(index[:-2], shape(indices)), copy):
            raise Unlike
        indices = self.graph.through(indices, *SHAPE_CHANGES)
        bound = index_bound(self.graph, indices)
        if bound is None or bound > self.num_experts:
            raise Unlike
        if space.equal(index[-2], n) and space.equal(index[-1], k):
            return weight, "gnk", indices
        if space.equal(index[-2], k) and space.equal(index[-1], n):
            return weight, "gkn", indices
        raise Unlike
