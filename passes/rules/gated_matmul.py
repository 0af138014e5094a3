"""Finds two products of the same rows, one activated and multiplied with the other, dense and grouped by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.gated_matmul.spec import GatedMatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape
from tkc.passes.graph.layout import as_matrix, restored
from tkc.passes.graph.readers import feeds_only
from tkc.passes.recognizers.activations import ACTIVATION_PARTS, Activation, activated
from tkc.passes.rules.grouped_matmul import gathered, grouped_product
from tkc.passes.rules.matmul import Fused, as_vector, biased_product, weight_sizes
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule, is_kernel_float
from tkc.passes.rules.swiglu import joined_halves, swiglu_operands

_USED_ELSEWHERE = "its products have other uses as well"

# What may stand between a product and the gated result.
_BETWEEN = (
    tuple(
        f"relax.{name}"
        for name in ("reshape", "split", "strided_slice", "maximum", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu")
    )
    + ACTIVATION_PARTS
)


@dataclass(frozen=True)
class _Gated:
    """``activation(gate) * up``; ``packed`` is the tensor whose halves these are, if there is one."""

    activation: Activation
    gate: relax.Expr
    up: relax.Expr
    packed: relax.Expr | None

    @property
    def products(self) -> tuple[relax.Expr, ...]:
        """What should be matrix products."""
        return (self.gate, self.up) if self.packed is None else (self.packed,)


def _gated(graph: Graph, var: relax.Var) -> _Gated | None:
    """``var`` as a gated tensor, before a cast, in a dtype that kernels compute in."""
    found = _factors(graph, var)
    if found is None or not is_kernel_float(dtype(var)):
        return None
    activation, gate, up = found
    if not all(has_known_shape(expr) and graph.same_shape(shape(expr), shape(var)) for expr in (gate, up)):
        return None
    return _Gated(activation, gate, up, joined_halves(graph, gate, up, dtype(var)) if shape(var) else None)


def _factors(graph: Graph, var: relax.Var) -> tuple[Activation, relax.Expr, relax.Expr] | None:
    """The activation, its operand, and the other factor."""
    operands = swiglu_operands(graph, var)
    if operands is not None:
        return "silu", *operands
    call = graph.call(graph.through_casts(var), "relax.multiply")
    for gate, up in () if call is None else (call.args, reversed(call.args)):
        found = activated(graph, graph.variable(graph.value(graph.through_casts(gate))))
        if found is not None:
            return found.activation, found.x, up
    return None


def _feeds_only(graph: Graph, products: Sequence[relax.Expr], var: relax.Var) -> bool:
    return all(feeds_only(graph, product, var, _BETWEEN) for product in products)


def _gated_call(match: Match) -> KernelCall | Refusal | None:
    graph, var = match.graph, match.var
    gated = _gated(graph, var)
    if gated is None:
        return None
    products = [product for expr in gated.products if (product := biased_product(graph, expr)) is not None]
    if len(products) != len(gated.products):
        return None
    reason = _unlike(graph, products)
    if reason is None and not _feeds_only(graph, gated.products, var):
        reason = _USED_ELSEWHERE
    if reason is not None:
        return Refusal(reason)
    first, name = products[0], dtype(var)
    biases = [graph.before_widening(product.bias, name) for product in products if product.bias is not None]
    if dtype(first.a) != name or None in biases:
        return None
    n, k = weight_sizes(first)
    parameters = GatedMatmulParameters(
        n=n if gated.packed is None else n // 2,
        k=k,
        dtype=name,
        weight_layout="nk" if first.transposed else "kn",
        activation=gated.activation,
        packed=gated.packed is not None,
        bias=bool(biases),
    )
    inputs = (as_matrix(first.a), *(product.weight for product in products), *map(as_vector, biases))
    return KernelCall(parameters, inputs, {var: restored(0, var)})


def _unlike(graph: Graph, products: Sequence[Fused]) -> str | None:
    """Why one kernel cannot compute these products together; ``None`` if it can."""
    first, last = products[0], products[-1]
    if not _same_rows(graph, first.a, last.a):
        return "its two products have different left operands"
    if weight_sizes(first) != weight_sizes(last) or first.transposed != last.transposed:
        return "the weights of its two products differ in shape or layout"
    if (first.bias is None) != (last.bias is None):
        return "only one of its two products has a bias"
    return None


def _same_rows(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    """Whether two tensors, seen as matrices of their last axis, are one."""
    sources = [graph.through(expr, "relax.reshape") for expr in (left, right)]
    return graph.same(*sources) and graph.equal(shape(left)[-1], shape(right)[-1])


def _gated_grouped_call(match: Match) -> KernelCall | Refusal | None:
    graph, var = match.graph, match.var
    gated = _gated(graph, var)
    if gated is None or gated.packed is None:
        return None
    call = graph.call(gated.packed, "relax.call_tir")
    product = None if call is None else grouped_product(graph, call.args[0], call.args[1])
    if product is None or isinstance(product, Refusal) or product.parameters.dtype != dtype(var):
        return None
    if not _feeds_only(graph, gated.products, var):
        return Refusal(_USED_ELSEWHERE)
    parameters = replace(product.parameters, n=product.parameters.n // 2, gated=gated.activation)
    found = gathered(graph, replace(product, parameters=parameters), var, ("relax.call_tir", *_BETWEEN), match.target)
    return KernelCall(found.parameters, found.inputs, {var: restored(0, var)})


_PATTERN = is_op("relax.astype")(wildcard()) | is_op("relax.multiply")(wildcard(), wildcard())

GATED_MATMUL = Rule(
    name="gated matrix product",
    kernel="matmul.gated",
    pattern=_PATTERN,
    parts={},
    check=_gated_call,
)

GATED_GROUPED_MATMUL = Rule(
    name="gated grouped product",
    kernel="matmul.grouped",
    pattern=_PATTERN,
    parts={},
    check=_gated_grouped_call,
)
