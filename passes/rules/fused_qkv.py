"""Fused QKV: matmuls of the same rows with several weights, to one call of the ``matmul`` kernel.

``x @ q_weight.T + q_bias``, ``x @ k_weight.T + k_bias``, … , with or without biases, become one matmul with the
concatenated weight and an output each. Each weight serves its own matmul alone, and no epilogue follows any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax

from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, shape
from tkc.passes.graph.found import Found, KernelCall
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import as_matrix, kernel_call
from tkc.passes.graph.readers import readers_past, sole_reader
from tkc.passes.recognizers.weight_matmul import Fused, biased_product, fused_product, weight_sizes
from tkc.passes.rules.rule import Rule, Site, operators


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


def _recognize(site: Site) -> Found | None:
    graph, name = site.graph, dtype(site.var)
    root = biased_product(graph, site.var)
    if root is None or not is_kernel_float(name):
        return None
    every = {projection.var: projection for projection in _projections(graph, root.a)}
    own = every.get(site.var)
    if own is None or dtype(root.a) != name:
        return None
    # Round numbers of columns come first, so that the columns after them begin where wide loads may.
    merged = sorted((p for p in every.values() if p.form == own.form), key=lambda p: -(p.columns & -p.columns))
    # One try for all of them.
    if len(merged) == 1 or not graph.last(projection.var for projection in merged).same_as(site.var):
        return None
    inputs = {"a": root.a} | {f"weight {index}": p.fused.weight for index, p in enumerate(merged)}
    inputs |= {f"bias {index}": p.fused.bias for index, p in enumerate(merged) if p.fused.bias is not None}
    outputs = tuple(projection.columns for projection in merged)
    parameters = MatmulParameters(
        n=sum(outputs),
        k=weight_sizes(root)[1],
        dtype=name,
        weight_layout="nk" if root.transposed else "kn",
        bias=own.fused.bias is not None,
        outputs=outputs,
    )
    consumed = frozenset(projection.fused.product for projection in merged).difference(p.var for p in merged)
    return Found(parameters, inputs, {p.var: index for index, p in enumerate(merged)}, consumed)


def _call(found: Found) -> KernelCall:
    weights, biases = (
        [tensor for name, tensor in found.inputs.items() if name.startswith(kind)] for kind in ("weight", "bias")
    )
    weight = relax.op.concat(weights, 0 if found.parameters.weight_layout == "nk" else 1)
    return kernel_call(found, [as_matrix(found.inputs["a"]), weight, *([relax.op.concat(biases, 0)] if biases else [])])


def _projections(graph: Graph, rows: relax.Expr) -> Iterator[_Projection]:
    """The products of the matrix ``rows`` with weights that serve nothing else, and that no epilogue follows."""
    source = graph.through(rows, "relax.reshape")
    for reader in readers_past(graph, source, "relax.reshape"):
        projection = _projection(graph, reader)
        if projection is None or not graph.same(graph.through(projection.fused.a, "relax.reshape"), source):
            continue
        if graph.equal(shape(projection.fused.a)[-1], shape(rows)[-1]):
            yield projection


def _projection(graph: Graph, product: relax.Var) -> _Projection | None:
    if graph.call(product, "relax.matmul") is None or (fused := biased_product(graph, product)) is None:
        return None
    found, reader = _Projection(product, fused), sole_reader(graph, product)
    if reader is not None:
        biased = biased_product(graph, reader)
        if biased is not None and biased.bias is not None:
            found = _Projection(reader, biased)
    if _has_epilogue(graph, found.var):
        return None
    return found if _is_own(graph, found.fused.weight, product) and _has_own_bias(graph, found) else None


def _is_own(graph: Graph, weight: relax.Expr, reader: relax.Var) -> bool:
    """Whether ``weight`` is one of the model's, and only ``reader`` needs it."""
    readers = set(readers_past(graph, weight, "relax.permute_dims", "relax.broadcast_to"))
    return graph.value(weight) in graph.weights and readers == {reader}


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


FUSED_QKV = Rule(
    name="fused_qkv",
    kernel="matmul",
    roots=operators("matmul", "add"),
    recognize=_recognize,
    call=_call,
    before=("matmul",),
)
