"""Reads what is computed alike for all experts, or for all choices of a token, from its end to its beginning.

What is computed of each row of a per-expert value (:mod:`.per_expert`) alone becomes nodes (:mod:`.nodes`), operator
by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax, tirx
from tvm_ffi import structural_equal

from tkc.passes.canonical.experts.matrices import Matrices
from tkc.passes.canonical.experts.nodes import (
    Applied,
    Layout,
    Node,
    OfExpert,
    Piece,
    Product,
    Rows,
    Shared,
    Weighted,
    Where,
)
from tkc.passes.canonical.experts.per_expert import Kind, PerExpert, PerExpertValues, Unlike
from tkc.passes.canonical.experts.routing import Routings
from tkc.passes.graph.bindings import SHAPE_CHANGES, dtype, known_dims, permuted_axes, shape, static
from tkc.passes.graph.views import flattened, int64

_UNARY = (
    *("astype", "negative", "exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "abs", "square", "erf", "clip"),
    *("nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.relu", "nn.leakyrelu", "nn.softplus"),
)
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
_ELEMENTWISE = tuple(f"relax.{name}" for name in (*_UNARY, *_BINARY))
_ACTIVATIONS = tuple(f"relax.{name}" for name in ("nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.relu", "sigmoid"))


class Reader(PerExpertValues):
    """Reads per-expert values of one kind; ``dtypes`` are those of all products that it has read."""

    def __init__(
        self,
        routings: Routings,
        kind: Kind,
        tokens: tirx.PrimExpr,
        num_experts: int,
        top_k: int | None = None,
    ) -> None:
        super().__init__(routings, kind, tokens, num_experts, top_k)
        self._matrices = Matrices(routings, num_experts)
        self.dtypes: set[str] = set()
        self._read: dict[tuple[tuple[relax.Expr, ...], int | None], Node] = {}

    def node(self, per_expert: PerExpert) -> Node:
        """What a per-expert value is; :class:`Unlike` if it is nothing that can be computed for sorted copies."""
        values = tuple(self.graph.variable(self.graph.value(value)) for value in per_expert.values)
        per_expert = PerExpert(values, per_expert.axis)
        key = tuple(map(self.graph.value, values)), per_expert.axis
        if key not in self._read:
            self._read[key] = self._node(per_expert)
        return self._read[key]

    def _node(self, per_expert: PerExpert) -> Node:
        if any(known_dims(value.struct_info) is None for value in per_expert.values):
            raise Unlike
        if (found := self._routing(per_expert)) is not None:
            return found
        if (found := self._independent(per_expert)) is not None:
            return found
        dims = shape(per_expert.values[0])
        if self._kind == "choices" and len(dims) > 1 and static(dims[-1]) == 1 and self._is_count(dims, self._copies):
            return Weighted(per_expert.values[0])
        axis = per_expert.axis if self._kind == "axis" else None
        is_of_experts = axis is not None and axis < len(dims) - 1 and static(dims[axis]) == self.num_experts
        if is_of_experts and self._is_count(dims, self.num_experts * dims[-1]):
            return OfExpert((relax.op.reshape(per_expert.values[0], (self.num_experts, dims[-1])),))
        value = self.graph.value(per_expert.values[0])
        if isinstance(value, relax.TupleGetItem):
            return self._split(per_expert)
        calls = [self.graph.value(value) for value in per_expert.values]
        if not all(isinstance(call, relax.Call) and call.op.same_as(value.op) for call in calls):
            raise Unlike
        name = str(getattr(value.op, "name", ""))
        if name in _ELEMENTWISE:
            return self._applied(per_expert, calls)
        if name == "relax.matmul":
            return self._multiplied(per_expert, calls)
        if name in (*SHAPE_CHANGES, "relax.permute_dims", "relax.broadcast_to"):
            return self._viewed(per_expert, calls)
        if name == "relax.strided_slice":
            return self._sliced(per_expert, calls)
        if name == "relax.where":
            return self._selected(per_expert, calls)
        if name == "relax.concat" and per_expert.axis is not None:
            return self._stacked(per_expert, calls[0])
        return self._leaf(per_expert)

    def _operand(self, per_expert: PerExpert, calls: Sequence[relax.Call], position: int) -> Node | relax.Expr:
        """The operand of an operator on each element."""
        operands = [call.args[position] for call in calls]
        first = operands[0]
        if not isinstance(first.struct_info, relax.TensorStructInfo):
            if not all(structural_equal(first, other) for other in operands):
                raise Unlike
            return first
        dims, rank = known_dims(first.struct_info), len(shape(per_expert.values[0]))
        if dims is None:
            raise Unlike
        if len(dims) == rank:
            return self.node(PerExpert(tuple(operands), per_expert.axis))
        if (constant := self.graph.constant(first)) is not None and len(calls) == 1:
            return Shared(relax.const(constant, dtype(first)))
        axis = None if per_expert.axis is None else per_expert.axis - (rank - len(dims))
        if axis is not None and axis >= 0:
            return self.node(PerExpert(tuple(operands), axis))
        if all(self.graph.same(first, other) for other in operands):
            if len(dims) == 0 or (len(dims) == 1 and rank > 1):
                constant = self.graph.constant(first)
                return Shared(first if constant is None else relax.const(constant, dtype(first)))
            return self.node(PerExpert((first,) * len(operands), None))
        return self._vectors(operands)

    def _vectors(self, operands: Sequence[relax.Expr]) -> Node:
        """A vector of each expert, such as a bias."""
        if self._kind != "experts" or len(shape(operands[0])) != 1:
            raise Unlike
        numbers = [self.graph.constant(operand) for operand in operands]
        if None not in numbers and len(set(numbers)) == 1:
            return Shared(relax.const(numbers[0], dtype(operands[0])))
        stacked = self._matrices.slices(operands, 1)
        if stacked is not None:
            return OfExpert((stacked[0],))
        return OfExpert(tuple(operands))

    def _applied(self, per_expert: PerExpert, calls: Sequence[relax.Call]) -> Node:
        first = calls[0]
        if not all(structural_equal(first.attrs, call.attrs) for call in calls):
            raise Unlike
        return Applied(first, [self._operand(per_expert, calls, position) for position in range(len(first.args))])

    def _split(self, per_expert: PerExpert) -> Node:
        pieces = [self.graph.last_axis_slice(value) for value in per_expert.values]
        first = pieces[0]
        if first is None or per_expert.axis == len(shape(per_expert.values[0])) - 1:
            raise Unlike
        if any(p is None or (p.begin, p.size) != (first.begin, first.size) for p in pieces):
            raise Unlike
        return Piece(
            self.node(PerExpert(tuple(p.source for p in pieces if p), per_expert.axis)), first.begin, first.size
        )

    def _sliced(self, per_expert: PerExpert, calls: Sequence[relax.Call]) -> Node:
        """Every so many channels."""
        first, dims = calls[0], shape(per_expert.values[0])
        size = static(dims[-1])
        same = all(all(map(structural_equal, first.args[1:], call.args[1:])) for call in calls)
        if not same or len(first.args[1].fields) != 1 or size is None or per_expert.axis == len(dims) - 1:
            raise Unlike
        axis, begin, _, *strides = (static(argument.fields[0].value) for argument in first.args[1:])
        stride = strides[0] if strides else 1
        if axis is None or axis % len(dims) != len(dims) - 1 or begin is None or begin < 0 or (stride or 0) < 1:
            return self._leaf(per_expert)
        return Piece(self.node(PerExpert(tuple(c.args[0] for c in calls), per_expert.axis)), begin, size, stride or 1)

    def _selected(self, per_expert: PerExpert, calls: Sequence[relax.Call]) -> Node:
        """What is computed for those alone that chose an expert."""
        if self._kind == "choices" or any(self.graph.constant(call.args[2]) != 0 for call in calls):
            raise Unlike
        for number, call in enumerate(calls):
            condition = call.args[0]
            dims = shape(condition)
            if len(dims) != len(shape(per_expert.values[0])) or static(dims[-1]) != 1:
                raise Unlike
            if not self._is_count(self._rows(PerExpert((condition,), per_expert.axis)), self.tokens):
                raise Unlike
            index, token, expert = self._place(condition, per_expert.axis)
            found = self._routings.chosen(condition, index, token)
            expected = int64(number) if expert is None else expert
            if found is None or not self._routings.space.equal(found.expert, expected):
                raise Unlike
            self.choose(found)
        operand = self._operand(per_expert, calls, 1)
        if isinstance(operand, relax.Expr):
            raise Unlike
        return Where(operand)

    def _side_by_side(self, joined: relax.Call, channels: tirx.PrimExpr) -> Node:
        """Experts' results in one tensor, which ``torch.stack`` joins by their channels."""
        parts, rank = self.graph.value(joined.args[0]), len(shape(joined))
        if not isinstance(parts, relax.Tuple) or joined.attrs.axis is None or len(parts.fields) != self.num_experts:
            raise Unlike
        if int(joined.attrs.axis) % rank != rank - 1:
            raise Unlike
        if not all(self.graph.equal(shape(part)[-1], channels) for part in parts.fields):
            raise Unlike
        return self._listed(parts.fields)

    def _stacked(self, per_expert: PerExpert, call: relax.Call) -> Node:
        """Experts' results in one tensor."""
        parts = self.graph.value(call.args[0])
        axis = None if call.attrs.axis is None else int(call.attrs.axis) % len(shape(call))
        if not isinstance(parts, relax.Tuple) or axis != per_expert.axis or len(parts.fields) != self.num_experts:
            raise Unlike
        if axis is None or any(static(shape(part)[axis]) != 1 for part in parts.fields):
            raise Unlike
        return self._listed(parts.fields)

    def _listed(self, parts: Sequence[relax.Expr]) -> Node:
        inner = Reader(self._routings, "experts", self.tokens, self.num_experts, self.top_k)
        inner.indices = self.indices
        found = inner.node(PerExpert(tuple(parts)))
        self.dtypes |= inner.dtypes
        if inner.indices is not None:
            self.indices, self.top_k = inner.indices, inner.top_k
        return found

    def _viewed(self, per_expert: PerExpert, calls: Sequence[relax.Call]) -> Node:
        """Rows with other axes, the channels last as before; or products whose matrices lie side by side."""
        paths = [self._path(per_expert, value) for value in per_expert.values]
        if (first := paths[0]) and all(len(path) == len(first) for path in paths):
            for step in range(len(first) - 1, -1, -1):  # the farthest source first
                steps = [path[step] for path in paths]
                places = [each for each in steps if each is not None]
                if len(places) == len(steps) and len({place for _, place in places}) == 1:
                    place = places[0][1]
                    if place == "tokens":
                        if len(places) == 1 or all(self.graph.same(places[0][0], each) for each, _ in places):
                            return Rows(places[0][0])
                        continue
                    return self.node(PerExpert(tuple(each for each, _ in places), place))
        if per_expert.axis is None and self._kind == "experts":
            raise Unlike
        return self._folded(calls[0], calls[0].args[0], shape(calls[0]))

    def _folded(self, call: relax.Call, source: relax.Expr, dims: Sequence[tirx.PrimExpr]) -> Node:
        """A product of rows with all experts' matrices side by side, ``[rows, experts * channels]``."""
        flat = self.graph.through(source, *SHAPE_CHANGES)
        while (moved := self.graph.call(flat, "relax.permute_dims")) is not None:
            real = [axis for axis in permuted_axes(moved) if static(shape(moved.args[0])[axis]) != 1]
            if real != sorted(real):
                raise Unlike
            flat = self.graph.through(moved.args[0], *SHAPE_CHANGES)
        joined = self.graph.call(flat, "relax.concat")
        if joined is not None and self._kind == "axis" and static(dims[-2]) == self.num_experts:
            return self._side_by_side(joined, dims[-1])
        matmul = self.graph.call(flat, "relax.matmul")
        columns = static(dims[-1])
        if matmul is None or columns is None:
            return self._leaf(PerExpert((call,)))
        if self._kind == "choices" and static(shape(matmul)[-1]) == 1:
            return self._weights_first(matmul)
        if not self.graph.equal(shape(matmul)[-1], dims[-2] * dims[-1]):
            return self._leaf(PerExpert((call,)))
        a, b = matmul.args
        left = self._of_tokens(a, shape(a))
        if left is None:
            raise Unlike
        if self._kind == "axis":
            if len(shape(b)) != 2 or static(dims[-2]) != self.num_experts:
                raise Unlike
            return replace(self._product(left, (b,), "gkn", columns, call), folded=True, packable=False)
        k, n = (self._routings.space.variable(name, size) for name, size in (("k", shape(b)[-2]), ("n", dims[-1])))
        token, choice = (self._routings.space.variable(name, s) for name, s in (("t", self.tokens), ("c", dims[-2])))
        place = (token, *[int64(0)] * (len(shape(b)) - 3), k, choice * dims[-1] + n)
        if len(shape(b)) != 3:
            raise Unlike
        weight, layout = self._gathered(b, place, token * dims[-2] + choice, k, n)
        return self._product(left, (weight,), layout, columns, call)

    def _multiplied(self, per_expert: PerExpert, calls: Sequence[relax.Call]) -> Node:
        """Products of experts' weights with rows."""
        call = calls[0]
        columns, (a, b) = static(shape(call)[-1]), call.args
        if columns is None or known_dims(a.struct_info) is None or known_dims(b.struct_info) is None:
            raise Unlike
        if self._kind == "experts":
            if len(shape(b)) != 2 or len(shape(a)) != len(shape(call)):
                raise Unlike
            left = self.node(PerExpert(tuple(each.args[0] for each in calls)))
            sources, layout = self._matrices.of_each([each.args[1] for each in calls])
            return self._product(left, sources, layout, columns, *per_expert.values)
        if self._kind == "axis":
            rank = len(shape(call))
            if per_expert.axis != rank - 3 or len(shape(b)) != 3 or static(shape(b)[0]) != self.num_experts:
                raise Unlike
            axis = per_expert.axis - (rank - len(shape(a)))
            rows = self.node(PerExpert((a,), axis)) if axis >= 0 else self._of_tokens(a, shape(a))
            if rows is None:
                raise Unlike
            return self._product(rows, (b,), "gkn", columns, call)
        if static(shape(a)[-2]) != 1 or len(shape(b)) != len(shape(call)):
            return self._weights_first(call)
        left = self.node(PerExpert((a,)))
        dims = shape(b)
        index = tuple(self._routings.space.variable(f"w{axis}", dim) for axis, dim in enumerate(dims))
        weight, layout = self._gathered(b, index, flattened(index[:-2], dims[:-2]), index[-2], index[-1])
        return self._product(left, (weight,), layout, columns, call)

    def _weights_first(self, call: relax.Call) -> Node:
        """``weights[indices] @ rows[..., None]``."""
        a, b = call.args
        dims, columns = shape(a), static(shape(call)[-2])
        if static(shape(call)[-1]) != 1 or not len(dims) == len(shape(call)) == len(shape(b)) or columns is None:
            raise Unlike
        index = tuple(self._routings.space.variable(f"w{axis}", dim) for axis, dim in enumerate(dims))
        weight, layout = self._gathered(a, index, flattened(index[:-2], dims[:-2]), index[-1], index[-2])
        source = self.graph.call(b, *SHAPE_CHANGES)
        if source is None or not self.graph.equal(shape(source.args[0])[-1], shape(b)[-2]):
            raise Unlike
        inner = source.args[0]
        left = self._of_tokens(inner, shape(inner)) or self.node(PerExpert((inner,)))
        return self._product(left, (weight,), layout, columns, call)

    def _gathered(
        self,
        expr: relax.Expr,
        index: tuple[tirx.PrimExpr, ...],
        copy: tirx.PrimExpr,
        k: tirx.PrimExpr,
        n: tirx.PrimExpr,
    ) -> tuple[relax.Expr, Layout]:
        """The weights of all experts, fetched by the choices that everything else is of."""
        weight, layout, indices = self._matrices.fetched(expr, index, copy, k, n)
        if self.indices is None:
            self.indices = indices
        if not self.graph.same(self.indices, indices):
            raise Unlike
        return weight, layout

    def _product(
        self, left: Node, sources: tuple[relax.Expr, ...], layout: Layout, columns: int, *results: relax.Expr
    ) -> Product:
        self.dtypes |= {dtype(source) for source in sources} | {dtype(results[0])}
        first = any(self._is_activated(result) for result in results[:1])
        weights = set(self.graph.weights)
        packable = all(
            isinstance(source, relax.Var)
            and source in weights
            and len(self.graph.users(source))
            == max(1, self.num_experts if len(sources) == 1 and self._kind == "experts" else 1)
            for source in sources
        )
        return Product(left, sources, layout, columns, first, packable)

    def _is_activated(self, value: relax.Expr) -> bool:
        pending, seen = [value], 0
        while pending and seen < 8:
            seen += 1
            for user in self.graph.users(pending.pop()):
                if self.graph.call(user, *_ACTIVATIONS) is not None:
                    return True
                if self.graph.call(user, "relax.astype", "relax.add", *SHAPE_CHANGES) is not None:
                    pending.append(user)
        return False
