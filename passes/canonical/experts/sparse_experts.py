"""Mixtures of experts that compute more than was chosen, or fetch weights for each token, as grouped products.

Authors write the sum over a token's experts as a loop over all experts, as products with all experts' weights, or as
products with weights that are fetched for each token. Kernels sort copies of the tokens by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.kernels import Target
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmul
from tkc.passes.canonical.experts.nodes import (
    Applied,
    Chosen,
    Emission,
    Node,
    Weighted,
    has_product,
    is_zero_unless_chosen,
)
from tkc.passes.canonical.experts.per_expert import PerExpert, Unlike
from tkc.passes.canonical.experts.per_expert_reader import Reader
from tkc.passes.canonical.experts.routing import Routing, Routings
from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, known_dims, shape, static
from tkc.passes.graph.index_bounds import index_bound
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import product
from tkc.passes.graph.readers import sole_reader
from tkc.passes.graph.rewriting import rewritten
from tkc.passes.graph.views import flattened, view_source

_TO_COLUMN = ("relax.multiply", "relax.astype", "relax.matmul", "relax.where", *SHAPE_CHANGES)


@dataclass(frozen=True)
class _Sum:
    """A sum over tokens' experts: a node for each copy of a token, and what else is added."""

    node: Node
    reader: Reader
    others: Sequence[relax.Expr] = ()


@tvm.transform.module_pass(opt_level=0, name="SparseExperts")
class SparseExperts:
    """Replaces sums over experts by sums over rows that are sorted by expert, where the target has grouped products.

    What a token's other experts compute is not computed, where their weights are proved to be zero. It is so even if
    that would not be finite, where zero times it is NaN: as with keys that a mask hides.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with grouped products."""
        found = {
            name: sums
            for name, function in module.functions_items()
            if isinstance(function, relax.Function)
            if (sums := dict(_sums(Graph(module, function), self._target)))
        }
        if not found:
            return module
        sums = {var: each for of in found.values() for var, each in of.items()}
        changed = rewritten(module, lambda each: _Rewriting(each, sums))
        return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(changed))


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule, sums: dict[relax.Var, _Sum]) -> None:
        super().__init__(module)
        self._sums = sums

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        found = self._sums.get(binding.var)
        if found is None:
            super().visit_var_binding_(binding)
            return
        reader = found.reader
        assert reader.indices is not None and reader.top_k is not None  # a reader that has read a sum knows them
        copies = product(shape(reader.indices))
        emission = Emission(self.builder_, reader.indices, reader.top_k, copies, reader.num_experts)
        total = emission.combined(found.node)
        dims = shape(binding.var)
        value = total
        if found.others:
            value = self.builder_.emit(op.reshape(value, shape(found.others[0])))
            for other in found.others:
                value = self.builder_.emit(op.add(other, value))
        new = self.builder_.emit(op.reshape(value, dims))
        self.set_var_remap(binding.var.vid, new)


def _sums(graph: Graph, target: Target) -> Iterator[tuple[relax.Var, _Sum]]:
    """The sums over experts, each with the variable that holds it."""
    if not any(index_bound(graph, var) is not None for var in graph.var2val):
        return
    routings, done = Routings(graph), set[relax.Expr]()
    for var in reversed(list(graph.var2val)):
        value = graph.value(var)
        if value in done or not isinstance(value, relax.Call) or known_dims(value.struct_info) is None:
            continue
        read = _ROOTS.get(str(getattr(value.op, "name", "")))
        if read is None or not shape(value) or not is_kernel_float(dtype(value)):
            continue
        for attempt in read:
            try:
                found = attempt(routings, value, done)
            except Unlike:
                continue
            if found is not None and _is_worth_it(found, target):
                yield var, found
                break


def _is_worth_it(found: _Sum, target: Target) -> bool:
    """Whether kernels multiply, and fewer experts than all."""
    reader = found.reader
    if reader.indices is None or reader.top_k is None or not has_product(found.node) or len(reader.dtypes) != 1:
        return False
    (name,) = reader.dtypes
    if not is_kernel_float(name) or reader.top_k >= reader.num_experts:
        return False
    return GroupedMatmul().unsupported(GroupedMatmulParameters(reader.num_experts, 128, 128, name), target) is None


def _added(routings: Routings, call: relax.Call, done: set[relax.Expr]) -> _Sum | None:
    """``y + expert_0(x) * w[:, 0] + expert_1(x) * w[:, 1] + ...``."""
    graph = routings.graph
    terms = list(_terms(graph, call, done))
    columns = [(term, found) for term in terms if (found := _column(routings, term)) is not None]
    if len(columns) < 2:
        return None
    indices = columns[0][1].indices
    count = index_bound(graph, indices)
    of = {static(found.expert): term for term, found in columns if graph.same(found.indices, indices)}
    if count is None or set(of) != set(range(count)) or len(columns) != count:
        return None
    rows = product(shape(indices)[:-1])
    reader = Reader(routings, "experts", rows, count)
    node = reader.node(PerExpert(tuple(of[number] for number in range(count))))
    if not is_zero_unless_chosen(node):
        return None
    taken = set(map(graph.value, of.values()))
    others = [term for term in terms if graph.value(term) not in taken and not _is_zero(graph, term)]
    if any(not graph.same_shape(shape(term), shape(call)) for term in (*others, *of.values())):
        return None
    return _Sum(node, reader, others)


def _is_zero(graph: Graph, expr: relax.Expr) -> bool:
    return graph.constant(expr) == 0


def _terms(graph: Graph, call: relax.Call, done: set[relax.Expr]) -> Iterator[relax.Expr]:
    """What ``call`` adds up, in order; sums that nothing else reads are part of it."""
    pending: list[relax.Expr] = [call]
    while pending:
        expr = pending.pop()
        added = graph.call(expr, "relax.add")
        if added is None or (added is not call and sole_reader(graph, expr) is None):
            yield expr
        else:
            done.add(added)
            pending += reversed(added.args)


def _column(routings: Routings, expr: relax.Expr) -> Routing | None:
    """The routing that a term is multiplied by."""
    graph, pending, seen = routings.graph, [expr], 0
    while pending and seen < 24:
        expr = pending.pop(0)
        seen += 1
        dims = known_dims(expr.struct_info)
        if not dims or not isinstance(graph.value(expr), relax.Call | relax.TupleGetItem):
            continue
        if len(dims) == 1 or static(dims[-1]) == 1:
            index = tuple(routings.space.variable(f"i{axis}", dim) for axis, dim in enumerate(dims))
            found = routings.element(expr, index, flattened(index, dims)) or routings.chosen(
                expr, index, flattened(index, dims)
            )
            if found is not None and static(found.expert) is not None:
                return found
        call = graph.call(expr, *_TO_COLUMN)
        if call is not None:
            pending += [
                arg for arg in call.args[: 1 if call.op.name == "relax.matmul" else 2] if isinstance(arg, relax.Var)
            ]
    return None


def _reduced(routings: Routings, call: relax.Call, _: set[relax.Expr]) -> _Sum | None:
    """``(y * w[..., None]).sum(axis)`` of an axis for experts, or for a token's choices."""
    operand = call.args[0]
    dims = known_dims(operand.struct_info)
    if dims is None or call.attrs.axis is None or len(call.attrs.axis) != 1 or len(dims) < 3:
        return None
    axis = int(call.attrs.axis[0]) % len(dims)
    count = static(dims[axis])
    if count is None or axis == len(dims) - 1:
        return None
    if (found := _of_axis(routings, operand, axis, count)) is not None:
        return found
    if any(static(dim) != 1 for dim in dims[axis + 1 : -1]):
        return None
    return _of_choices(routings, operand, product(dims[:axis]), count)


def _of_axis(
    routings: Routings, operand: relax.Expr, axis: int, count: int, w: relax.Expr | None = None
) -> _Sum | None:
    """The sum of an ``operand`` over an axis for experts; ``w`` are its weights where they are apart from it."""
    dims = shape(operand)
    tokens = product([*dims[:axis], *dims[axis + 1 : -1]])
    reader = Reader(routings, "axis", tokens, count)
    try:
        weights = None if w is None else _apart(routings, reader, w)
        node = reader.node(PerExpert((operand,), axis))
    except Unlike:
        return None
    if weights is not None:
        node = _times(node, weights, operand)
    return _Sum(node, reader) if is_zero_unless_chosen(node) else None


def _apart(routings: Routings, reader: Reader, w: relax.Expr) -> Node:
    """Weights ``[tokens, experts]``, perhaps with axes of one."""
    dims = shape(w)
    index = tuple(routings.space.variable(f"i{axis}", dim) for axis, dim in enumerate(dims))
    places = [axis for axis, dim in enumerate(dims) if static(dim) == reader.num_experts]
    if not places:
        raise Unlike
    expert = places[-1]
    rows = [axis for axis in range(len(dims)) if axis != expert]
    token = flattened([index[axis] for axis in rows], [dims[axis] for axis in rows])
    found = routings.element(w, index, token)
    if found is None or found.weights is None or not routings.space.equal(found.expert, index[expert]):
        raise Unlike
    reader.choose(found)
    return Chosen(found.weights)


def _times(node: Node, weights: Node, like: relax.Expr) -> Node:
    return Applied(op.multiply(like, like), [node, weights])


def _of_choices(
    routings: Routings, operand: relax.Expr, tokens: tirx.PrimExpr, count: int, w: relax.Expr | None = None
) -> _Sum | None:
    """The sum of an ``operand``, which has a row for each choice of each token, over the choices."""
    for experts in _numbers_of_experts(routings.graph):
        reader = Reader(routings, "choices", tokens, experts, count)
        try:
            node = reader.node(PerExpert((operand,)))
        except Unlike:
            continue
        if not has_product(node):
            continue
        if w is not None:
            node = _times(node, Weighted(w), operand)
        if reader.indices is None or not routings.graph.equal(product(shape(reader.indices)), reader.tokens * count):
            continue
        return _Sum(node, reader)
    return None


def _numbers_of_experts(graph: Graph) -> list[int]:
    """Of how many matrices a token's are fetched somewhere."""
    found = dict[int, None]()
    for var in graph.var2val:
        take = graph.call(var, "relax.take")
        if take is not None and known_dims(take.args[0].struct_info) is not None and len(shape(take.args[0])) == 3:
            count = static(shape(take.args[0])[0])
            if count is not None and take.attrs.axis is not None and int(take.attrs.axis) == 0:
                found[count] = None
    return list(found)


def _contracted(routings: Routings, call: relax.Call, _: set[relax.Expr]) -> _Sum | None:
    """``w[:, None] @ y``, a product of each token's weights and its experts' results; or of ``y.mT`` and ``w``."""
    a, b = call.args
    if (
        any(known_dims(arg.struct_info) is None for arg in (a, b))
        or len(shape(a)) != len(shape(b))
        or len(shape(a)) < 3
    ):
        return None
    if static(shape(call)[-2]) == 1 and (count := static(shape(b)[-2])) is not None:
        weights, rows, axis = a, b, _second_last(b)
    elif static(shape(call)[-1]) == 1 and (found := _with_channels_last(routings, a)) is not None:
        weights, (rows, axis, count) = b, found
    else:
        return None
    if axis is not None and (sum_ := _of_axis(routings, rows, axis, count, weights)) is not None:
        return sum_
    if not routings.graph.same_shape(shape(a)[:-2], shape(b)[:-2]):
        return None
    return _of_choices(routings, rows, product(shape(a)[:-2]), count, weights)


def _second_last(expr: relax.Expr) -> int | None:
    return len(shape(expr)) - 2


def _with_channels_last(routings: Routings, a: relax.Expr) -> tuple[relax.Expr, int | None, int] | None:
    """The tensor of which ``a [..., channels, count]`` is a view with the channels last, and its axis of ``count``."""
    space, dims = routings.space, shape(a)
    count = static(dims[-1])
    index = tuple(space.variable(f"i{axis}", dim) for axis, dim in enumerate(dims))
    position = flattened((*index[:-2], index[-1]), (*dims[:-2], dims[-1]))
    expr, place = a, index
    while count is not None and (source := view_source(routings.graph, space, expr, place)) is not None:
        expr, place = source
        own = shape(expr)
        if not place or not space.equal(place[-1], index[-2]) or not space.equal(own[-1], dims[-2]):
            continue
        axis = [at for at in range(len(own) - 1) if static(own[at]) == count and space.equal(place[at], index[-1])]
        if axis or space.equal(flattened(place[:-1], own[:-1]), position):
            return expr, axis[0] if axis else None, count
    return None


_Root = Callable[[Routings, relax.Call, set[relax.Expr]], _Sum | None]
_ROOTS: dict[str, Sequence[_Root]] = {
    "relax.add": (_added,),
    "relax.sum": (_reduced,),
    "relax.matmul": (_contracted,),
}
