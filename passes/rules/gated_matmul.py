"""Fused gate and up projections, dense and grouped by expert, to ``matmul.gated`` and ``matmul.grouped``.

``activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias)``, or of the halves of one matmul's result; grouped, of the
halves of ``torch._grouped_mm(x, weight, offsets)``. Nothing else reads the matmuls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import relax

from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import as_matrix, as_vector, kernel_call
from tkc.passes.graph.readers import between
from tkc.passes.recognizers.activations import Activation, activated
from tkc.passes.recognizers.grouped_matmul import gathered, grouped_product
from tkc.passes.recognizers.swiglu import joined_halves, swiglu_factors
from tkc.passes.recognizers.weight_matmul import Fused, biased_product, weight_sizes
from tkc.passes.rules.rule import Rule, Site, operators


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
    operands = swiglu_factors(graph, var)
    if operands is not None:
        return "silu", *operands
    call = graph.call(graph.through_casts(var), "relax.multiply")
    for gate, up in () if call is None else (call.args, reversed(call.args)):
        found = activated(graph, graph.variable(graph.value(graph.through_casts(gate))))
        if found is not None:
            return found.activation, found.x, up
    return None


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    gated = _gated(graph, var)
    if gated is None:
        return None
    products = [product for expr in gated.products if (product := biased_product(graph, expr)) is not None]
    if len(products) != len(gated.products):
        return None
    reason = _unlike(graph, products)
    if reason is not None:
        return Refusal(reason)
    first, name = products[0], dtype(var)
    inputs = {"a": first.a} | {f"weight {index}": product.weight for index, product in enumerate(products)}
    for index, product in enumerate(products):
        if product.bias is not None:
            bias = graph.before_widening(product.bias, name)
            if bias is None:
                return None
            inputs[f"bias {index}"] = bias
    if dtype(first.a) != name or not is_kernel_float(name):
        return None
    n, k = weight_sizes(first)
    parameters = GatedMatmulParameters(
        n=n if gated.packed is None else n // 2,
        k=k,
        dtype=name,
        weight_layout="nk" if first.transposed else "kn",
        activation=gated.activation,
        packed=gated.packed is not None,
        bias=first.bias is not None,
    )
    consumed = frozenset().union(*(between(graph, product.product, var) for product in products))
    return Found(parameters, inputs, {var: 0}, consumed)


def _call(found: Found) -> KernelCall:
    a, *others = found.inputs.items()
    rest = [as_vector(tensor) if name.startswith("bias") else tensor for name, tensor in others]
    return kernel_call(found, [as_matrix(a[1]), *rest])


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


def _recognize_grouped(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    gated = _gated(graph, var)
    if gated is None or gated.packed is None:
        return None
    product = grouped_product(graph, gated.packed)
    if product is None or isinstance(product, Refusal) or product.parameters.dtype != dtype(var):
        return None
    consumed = between(graph, gated.packed, var)
    parameters = replace(product.parameters, n=product.parameters.n // 2, gated=gated.activation)
    product = replace(product, parameters=parameters)
    whole = gathered(graph, product, var, site.target)
    if whole is not product:
        consumed |= between(graph, product.inputs["a"], var)
    return Found(whole.parameters, whole.inputs, {var: 0}, consumed)


GATED_MATMUL = Rule(
    name="gated_matmul",
    kernel="matmul.gated",
    roots=operators("astype", "multiply"),
    recognize=_recognize,
    call=_call,
    before=("swiglu", "scaled_matmul", "fused_qkv", "matmul"),
)

GATED_GROUPED_MATMUL = Rule(
    name="gated_grouped_matmul",
    kernel="matmul.grouped",
    roots=operators("astype", "multiply"),
    recognize=_recognize_grouped,
    call=kernel_call,
    before=("swiglu", "grouped_matmul"),
)
