"""Finds products of the same rows with several weights, as a query's, key's and value's, for one kernel call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.matmul.spec import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, shape
from tkc.passes.graph.layout import as_matrix, restored
from tkc.passes.graph.readers import feeds_only
from tkc.passes.rules.matmul import Fused, biased_product, fused_product, weight_sizes
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule, is_kernel_float


@dataclass(frozen=True)
class _Projection:
    """``var``, a product with a weight of the model, and its bias if it has one."""

    var: relax.Var
    fused: Fused

    @property
    def columns(self) -> int:
        """The columns of the product."""
        return weight_sizes(self.fused)[0]

    @property
    def form(self) -> tuple[object, ...]:
        """What projections have in common where one kernel call computes them."""
        return (dtype(self.var), self.fused.transposed, self.fused.bias is None)


def _check(match: Match) -> KernelCall | Refusal | None:
    graph, name = match.graph, dtype(match.var)
    root = biased_product(graph, match.var)
    if root is None or not is_kernel_float(name):
        return None
    every = {projection.var: projection for projection in _projections(graph, root.a)}
    own = every.get(match.var)
    if own is None or dtype(root.a) != name:
        return None
    # Round numbers of columns come first, so that the columns after them begin where wide loads may.
    merged = sorted((p for p in every.values() if p.form == own.form), key=lambda p: -(p.columns & -p.columns))
    # One try for all of them.
    if len(merged) == 1 or not graph.last(projection.var for projection in merged).same_as(match.var):
        return None
    weight_axis = 0 if root.transposed else 1
    weights = relax.op.concat([projection.fused.weight for projection in merged], weight_axis)
    biases = [projection.fused.bias for projection in merged if projection.fused.bias is not None]
    outputs = tuple(projection.columns for projection in merged)
    parameters = MatmulParameters(
        n=sum(outputs),
        k=weight_sizes(root)[1],
        dtype=name,
        weight_layout="nk" if root.transposed else "kn",
        bias=bool(biases),
        outputs=outputs,
    )
    inputs = (as_matrix(root.a), weights, *([relax.op.concat(biases, 0)] if biases else []))
    replaces = {projection.var: restored(index, projection.var) for index, projection in enumerate(merged)}
    return KernelCall(parameters, inputs, replaces)


def _projections(graph: Graph, rows: relax.Expr) -> Iterator[_Projection]:
    """The products of the matrix ``rows`` with weights that serve nothing else, and that no epilogue follows."""
    for product in _products(graph, graph.through(rows, "relax.reshape")):
        projection = _projection(graph, product)
        if projection is not None and graph.equal(shape(projection.fused.a)[-1], shape(rows)[-1]):
            yield projection


def _products(graph: Graph, source: relax.Expr) -> Iterator[relax.Var]:
    """The variables that hold a product whose left operand is ``source`` or a reshape of it."""
    for reader in graph.users(source):
        if (call := graph.call(reader, "relax.matmul")) is not None:
            if graph.same(call.args[0], source):
                yield reader
        elif graph.call(reader, "relax.reshape") is not None:
            yield from _products(graph, reader)


def _projection(graph: Graph, product: relax.Var) -> _Projection | None:
    found = _Projection(product, fused) if (fused := biased_product(graph, product)) is not None else None
    readers = graph.users(product)
    if found is not None and len(readers) == 1:
        biased = biased_product(graph, readers[0])
        if biased is not None and biased.bias is not None:
            found = _Projection(readers[0], biased)
    if found is None or _has_epilogue(graph, found.var):
        return None
    return found if _is_own(graph, found.fused.weight, product) and _has_own_bias(graph, found) else None


def _is_own(graph: Graph, weight: relax.Expr, reader: relax.Var) -> bool:
    """Whether ``weight`` is one of the model's, and only ``reader`` needs it."""
    is_weight = graph.value(weight) in graph.weights
    return is_weight and feeds_only(graph, weight, reader, ("relax.permute_dims", "relax.broadcast_to"))


def _has_own_bias(graph: Graph, projection: _Projection) -> bool:
    bias = projection.fused.bias
    return bias is None or (bias.struct_info.ndim == 1 and _is_own(graph, bias, projection.var))


def _has_epilogue(graph: Graph, var: relax.Var) -> bool:
    """Whether a plain product would take more along than ``var``: an activation, or a residual."""
    for reader in graph.users(var):
        fused = fused_product(graph, reader)
        if fused is not None and (fused.activation is not None or fused.residual is not None):
            return True
        if graph.call(reader, "relax.reshape", "relax.astype") is not None and _has_epilogue(graph, reader):
            return True
    return False


MERGED_MATMUL = Rule(
    name="merged matrix products",
    kernel="matmul",
    pattern=is_op("relax.matmul")(wildcard(), wildcard()) | is_op("relax.add")(wildcard(), wildcard()),
    parts={},
    check=_check,
)
