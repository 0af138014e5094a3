"""Proves that a tensor is zero wherever a token did not choose an expert, and what it is where one did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import relax, tirx
from tvm.relax import op

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, known_dims, shape, static
from tkc.passes.graph.index_bounds import index_bound
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, flattened, int64, view_source

Emit = Callable[[relax.Expr], relax.Expr]
Weights = Callable[[Emit], relax.Expr]
"""Emits the weights of the chosen experts, ``[tokens, top_k]``."""


@dataclass(frozen=True)
class Routing:
    """An element that is zero unless a token chose ``expert``; ``indices [..., top_k]`` says what it chose.

    ``weights`` are what it is for the chosen experts; ``None`` for a condition. Tokens choose no expert twice where
    ``distinct``; elsewhere the element is the sum for all choices of the expert.
    """

    indices: relax.Expr
    expert: tirx.PrimExpr
    weights: Weights | None


class Routings:
    """Looks for routings among the elements of a graph's tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.space = IndexSpace.of(graph)

    def element(self, expr: relax.Expr, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """The routing that ``expr`` holds at ``index``, for the token with the number ``token``."""
        expr, index = self._origin(expr, index)
        call = self.graph.value(expr)
        if not isinstance(call, relax.Call) or not hasattr(call.op, "name") or known_dims(call.struct_info) is None:
            return None
        read = _READERS.get(call.op.name)
        return None if read is None else read(self, call, index, token)

    def chosen(self, expr: relax.Expr, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """The same for truth values: those that hold for chosen experts alone, and for all of them."""
        expr, index = self._origin(expr, index)
        graph = self.graph
        compared = graph.call(expr, "relax.greater", "relax.not_equal")
        if compared is not None and graph.constant(compared.args[1]) == 0:
            return self.chosen(compared.args[0], _operand_index(compared, 0, index), token)
        if (cast := graph.call(expr, "relax.astype")) is not None:
            return self.chosen(cast.args[0], index, token)
        if (scatter := graph.call(expr, "relax.scatter_elements")) is not None:
            found = self._scattered(scatter, index, token)
            ones = graph.constant(scatter.args[2])
            return replace(found, weights=None) if found is not None and ones in (1, True) else None
        reduced = graph.call(expr, "relax.sum", "relax.max")
        if reduced is None or (place := self._choice(reduced, index)) is None:
            return None
        return self._equals(reduced.args[0], place[0], place[1], token)

    def _origin(self, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index]:
        """The value from which ``expr`` has its element at ``index``, and where there, through views."""
        while (source := view_source(self.graph, self.space, expr, index)) is not None:
            dims = known_dims(source[0].struct_info)
            if dims is None or len(dims) != len(source[1]) or not all(map(self.space.within, source[1], dims)):
                break
            expr, index = source
        return expr, index

    def _is_token(self, dims: tuple[tirx.PrimExpr, ...], index: Index, token: tirx.PrimExpr) -> bool:
        return self.space.equal(flattened(index, dims), token)

    def _choice(self, reduced: relax.Call, index: Index) -> tuple[Index, tirx.PrimExpr] | None:
        """An index into what is reduced over one axis, and the variable along that axis."""
        dims, axes = known_dims(reduced.args[0].struct_info), reduced.attrs.axis
        if dims is None or axes is None or len(axes) != 1 or static(dims[int(axes[0])]) is None:
            return None
        axis = int(axes[0]) % len(dims)
        choice = self.space.variable("choice", dims[axis])
        others = [*index[:axis], *index[axis + (1 if reduced.attrs.keepdims else 0) :]]
        return (*others[:axis], choice, *others[axis:]), choice

    def _equals(self, expr: relax.Expr, index: Index, choice: tirx.PrimExpr, token: tirx.PrimExpr) -> Routing | None:
        """``expr`` at ``index`` where that says whether a token's choice of the number ``choice`` is an expert."""
        graph = self.graph
        expr, index = self._origin(expr, index)
        while (call := graph.call(expr, "relax.astype")) is not None:
            expr, index = self._origin(call.args[0], index)
        compared = graph.call(expr, "relax.equal")
        if compared is None:
            return None
        for first in (0, 1):
            experts, place = self._origin(compared.args[first], _operand_index(compared, first, index))
            expert = self._number(compared.args[1 - first], _operand_index(compared, 1 - first, index))
            dims = known_dims(experts.struct_info)
            if expert is None or dims is None or index_bound(graph, experts) is None or not place:
                continue
            if self.space.equal(place[-1], choice) and self._is_token(dims[:-1], place[:-1], token):
                return Routing(experts, expert, None)
        return None

    def _number(self, expr: relax.Expr, index: Index) -> tirx.PrimExpr | None:
        """The whole number that ``expr`` is at ``index``: a constant, or an entry of ``0, 1, 2, ...``."""
        constant = self.graph.constant(expr)
        if constant is not None:
            return int64(int(constant)) if isinstance(constant, int) else None
        expr, index = self._origin(expr, index)
        counted = self.graph.call(expr, "relax.arange")
        if counted is None:
            return None
        start, _, step = (static(argument.value) for argument in counted.args)
        return index[0] if (start, step) == (0, 1) else None

    def _scattered(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """Weights that were written to the places of the chosen experts, among zeros."""
        data, indices, source = call.args
        dims, rank = known_dims(indices.struct_info), len(index)
        reduction = str(call.attrs.reduction)
        if dims is None or int(call.attrs.axis) % rank != rank - 1 or self.graph.constant(data) != 0:
            return None
        distinct = are_distinct(self.graph, indices)
        if not (reduction == "update" and distinct) and reduction != "add":
            return None
        whole = self.graph.same_shape(shape(call)[:-1], dims[:-1]) and self.graph.same_shape(shape(source), dims)
        if not whole or static(dims[-1]) is None or not self._is_token(dims[:-1], index[:-1], token):
            return None
        return Routing(indices, index[-1], lambda _: source)

    def _summed(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """``sum_k (indices[k] == expert) * weights[k]``."""
        place = self._choice(call, index)
        return None if place is None else self._weighted(call.args[0], *place, token)

    def _weighted(self, expr: relax.Expr, index: Index, choice: tirx.PrimExpr, token: tirx.PrimExpr) -> Routing | None:
        """What ``expr`` is at ``index``, if it is a weight where a choice is an expert, and else zero."""
        graph = self.graph
        expr, index = self._origin(expr, index)
        if (cast := graph.call(expr, "relax.astype")) is not None:
            found = self._weighted(cast.args[0], index, choice, token)
            return None if found is None else _cast(found, dtype(cast))
        if (selected := graph.call(expr, "relax.where")) is not None:
            if graph.constant(selected.args[2]) != 0:
                return None
            pairs = [(0, 1)]
        elif (selected := graph.call(expr, "relax.multiply")) is not None:
            pairs = [(0, 1), (1, 0)]
        else:
            return None
        for condition, weight in pairs:
            at = (_operand_index(selected, operand, index) for operand in (condition, weight))
            found = self._equals(selected.args[condition], next(at), choice, token)
            if found is not None and (weights := self._of_choice(selected.args[weight], next(at), choice, token)):
                return replace(found, weights=weights)
        return None

    def _of_choice(self, expr: relax.Expr, index: Index, choice: tirx.PrimExpr, token: tirx.PrimExpr) -> Weights | None:
        """The tensor ``[..., top_k]`` whose element for a token's choice ``expr`` has at ``index``."""
        expr, index = self._origin(expr, index)
        if (cast := self.graph.call(expr, "relax.astype")) is not None:
            inner = self._of_choice(cast.args[0], index, choice, token)
            name = dtype(cast)
            return None if inner is None else lambda emit: emit(op.astype(inner(emit), name))
        dims = known_dims(expr.struct_info)
        if not dims or not self.space.equal(index[-1], choice) or not self._is_token(dims[:-1], index[:-1], token):
            return None
        return lambda _: expr

    def _cast(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        found = self.element(call.args[0], index, token)
        return None if found is None else _cast(found, dtype(call))

    def _contracted(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """A product of a token's weights and the table of its choices, as ``einsum`` writes their sum."""
        dims = known_dims(call.args[0].struct_info)
        if dims is None or static(dims[-1]) is None or any(arg.struct_info.ndim != len(index) for arg in call.args):
            return None
        choice = self.space.variable("choice", dims[-1])
        left, right = (*index[:-1], choice), (*index[:-2], choice, index[-1])
        places = (broadcast_index(at, shape(arg)) for at, arg in zip((left, right), call.args, strict=True))
        for (weights, at), (table, there) in (ways := list(zip(call.args, places, strict=True)), ways[::-1]):
            found = self._equals(table, there, choice, token)
            if found is not None and (of := self._of_choice(weights, at, choice, token)) is not None:
                return replace(found, weights=of)
        return None

    def _multiplied(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """Scores times what is 1 for the chosen experts, or a routing times a number of each token."""
        for first in (0, 1):
            at = [_operand_index(call, operand, index) for operand in (first, 1 - first)]
            mask, other = call.args[first], call.args[1 - first]
            if _is_score(self.graph, other) and (found := self.chosen(mask, at[0], token)) is not None:
                return self._gathered(found, other, at[1], token)
            if (found := self.element(mask, at[0], token)) is not None and found.weights is not None:
                return self._scaled(found, other, op.multiply)
        return None

    def _divided(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        found = self.element(call.args[0], _operand_index(call, 0, index), token)
        return None if found is None else self._scaled(found, call.args[1], op.divide)

    def _scaled(
        self, found: Routing, by: relax.Expr, function: Callable[[relax.Expr, relax.Expr], relax.Expr]
    ) -> Routing | None:
        """A routing times or divided by a number, or one number of each token."""
        dims, own = known_dims(by.struct_info), shape(found.indices)
        single = dims is not None and (not dims or static(dims[-1]) == 1)
        if found.weights is None or dims is None or not single:
            return None
        if self.graph.constant(by) is None and not self.graph.same_shape(dims[:-1], own[:-1]):
            return None
        weights, total = found.weights, self._total(by, found)
        return replace(found, weights=lambda emit: emit(function(weights(emit), by if total is None else total(emit))))

    def _total(self, expr: relax.Expr, found: Routing) -> Weights | None:
        """``expr [..., 1]``, if that is the sum of a token's routing over all experts, as the sum of its weights."""
        graph = self.graph
        step = graph.call(expr, *SHAPE_CHANGES, "relax.astype", "relax.add", "relax.maximum")
        if step is not None:
            inner = self._total(step.args[0], found)
            by_number = step.op.name not in ("relax.add", "relax.maximum") or graph.constant(step.args[1]) is not None
            if inner is None or not by_number:
                return None
            if step.op.name in SHAPE_CHANGES:
                return lambda emit: emit(op.reshape(inner(emit), shape(step)))
            return lambda emit: emit(relax.Call(step.op, [inner(emit), *step.args[1:]], step.attrs))
        call = graph.call(expr, "relax.sum")
        dims = None if call is None else known_dims(call.args[0].struct_info)
        if call is None or dims is None or call.attrs.axis is None or len(dims) != len(shape(found.indices)):
            return None
        if [int(axis) % len(dims) for axis in call.attrs.axis] != [len(dims) - 1]:
            return None
        index = tuple(self.space.variable(f"t{axis}", dim) for axis, dim in enumerate(dims))
        summed = self.element(call.args[0], index, flattened(index[:-1], dims[:-1]))
        if summed is None or summed.weights is None or not self.graph.same(summed.indices, found.indices):
            return None
        if not self.space.equal(summed.expert, index[-1]):
            return None
        weights, keeps = summed.weights, bool(call.attrs.keepdims)
        return lambda emit: emit(op.sum(weights(emit), axis=[-1], keepdims=keeps))

    def _selected(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """Scores where an expert was chosen, and else zero."""
        scores, at = self._where(call, index, token, 0)
        return None if at is None else self._gathered(at, scores, _operand_index(call, 1, index), token)

    def _where(
        self, call: relax.Call, index: Index, token: tirx.PrimExpr, other: float
    ) -> tuple[relax.Expr, Routing | None]:
        """What is selected where an expert was chosen, if that is ``other`` elsewhere, and the choice."""
        graph = self.graph
        condition, chosen, otherwise = call.args
        at = _operand_index(call, 0, index)
        while (negated := graph.call(condition, "relax.logical_not")) is not None:
            condition, chosen, otherwise = negated.args[0], otherwise, chosen
        if graph.constant(otherwise) != other:
            return chosen, None
        return chosen, self.chosen(condition, at, token)

    def _softmax(self, call: relax.Call, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """The softmax of logits that are minus infinity where an expert was not chosen."""
        rank = len(index)
        if int(call.attrs.axis) % rank != rank - 1:
            return None
        logits, at = self._origin(call.args[0], index)
        names = []
        while (cast := self.graph.call(logits, "relax.astype")) is not None:
            names.append(dtype(cast))
            logits = cast.args[0]
        masked = self.graph.call(logits, "relax.where")
        if masked is None or len(at) != rank:
            return None
        scores, found = self._where(masked, at, token, float("-inf"))
        gathered = None if found is None else self._gathered(found, scores, at, token)
        if gathered is None or gathered.weights is None:
            return None
        weights = gathered.weights

        def emitted(emit: Emit) -> relax.Expr:
            value = weights(emit)
            for name in reversed(names):
                value = emit(op.astype(value, name))
            return emit(op.nn.softmax(value, axis=-1))

        return replace(gathered, weights=emitted)

    def _gathered(self, found: Routing, scores: relax.Expr, index: Index, token: tirx.PrimExpr) -> Routing | None:
        """The weights of chosen experts are their scores, all experts' ``scores [..., experts]`` at ``index``."""
        dims, own = known_dims(scores.struct_info), shape(found.indices)
        if not dims or len(index) != len(dims) or not are_distinct(self.graph, found.indices):
            return None
        if not self.graph.same_shape(dims[:-1], own[:-1]) or not self.space.equal(index[-1], found.expert):
            return None
        if not self._is_token(dims[:-1], index[:-1], token):
            return None
        indices = found.indices
        return replace(found, weights=lambda emit: emit(op.gather_elements(scores, indices, len(dims) - 1)))


_READERS: dict[str, Callable[[Routings, relax.Call, Index, tirx.PrimExpr], Routing | None]] = {
    "relax.scatter_elements": Routings._scattered,
    "relax.sum": Routings._summed,
    "relax.astype": Routings._cast,
    "relax.matmul": Routings._contracted,
    "relax.multiply": Routings._multiplied,
    "relax.divide": Routings._divided,
    "relax.where": Routings._selected,
    "relax.nn.softmax": Routings._softmax,
}


def are_distinct(graph: Graph, indices: relax.Expr) -> bool:
    """Whether a row of ``indices`` names nothing twice: its last axis is that of a ``topk`` or of sorted positions."""
    while (moved := graph.call(indices, "relax.strided_slice", "relax.astype")) is not None:
        if dtype(moved) not in ("int32", "int64"):
            return False
        indices = moved.args[0]
    value = graph.value(indices)
    pair = isinstance(value, relax.TupleGetItem)
    call = graph.call(value.tuple_value if pair else value, "relax.topk", "relax.argsort")
    if call is None or (
        call.op.name == "relax.topk" and (value.index != 1 if pair else call.attrs.ret_type != "indices")
    ):
        return False
    rank = call.args[0].struct_info.ndim
    return bool(int(call.attrs.axis) % rank == rank - 1)


def _cast(found: Routing, name: str) -> Routing:
    weights = found.weights
    return found if weights is None else replace(found, weights=lambda emit: emit(op.astype(weights(emit), name)))


def _is_score(graph: Graph, expr: relax.Expr) -> bool:
    """Whether ``expr`` holds no infinity, which times zero is NaN."""
    return graph.call(graph.through_casts(expr), "relax.nn.softmax", "relax.sigmoid") is not None


def _operand_index(call: relax.Call, operand: int, index: Index) -> Index:
    return broadcast_index(index, shape(call.args[operand]))
