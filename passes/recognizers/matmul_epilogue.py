"""A matmul with a weight and its epilogue, as the ``matmul`` kernel computes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import DataType, relax

from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, shape
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.readers import between, sole_reader
from tkc.passes.recognizers.activations import activated
from tkc.passes.recognizers.batch_norm import Normalized, batch_normalized
from tkc.passes.recognizers.weight_matmul import (
    Fused,
    before_reshape,
    biased_product,
    fused_product,
    unfit,
    weight_sizes,
)

ROOTS = (
    *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "astype"),
    *("matmul", "add", "multiply", "divide", "maximum"),
)
"""The operators at whose results it ends."""

_NORMALIZING = ("relax.subtract", "relax.multiply")  # what a batch normalization does first


def matmul_with_epilogue(graph: Graph, var: relax.Var) -> Found | Refusal | None:
    """``var`` as ``activation(a @ weight + bias) + residual``, of inputs by these names; ``None`` where it is none."""
    if (product := graph.call(var, "relax.matmul")) is not None and (reason := unfit(graph, product)) is not None:
        return Refusal(reason)
    fused = fused_product(graph, var)
    if fused is None or _is_widened_for_generated_code(graph, var):
        return None
    return epilogue_of(graph, fused, var)


def epilogue_of(graph: Graph, fused: Fused, var: relax.Var) -> Found | None:
    """What ``var`` holds, ``fused``, as a matmul with its inputs; ``None`` where the kernel has no such dtypes."""
    name, out = dtype(fused.a), dtype(var)
    if not (is_kernel_float(name) and is_kernel_float(out)):
        return None
    inputs = {"a": fused.a, "weight": fused.weight}
    for addend, tensor, wanted in (("bias", fused.bias, name), ("residual", fused.residual, out)):
        if tensor is None:
            continue
        narrow = graph.before_widening(tensor, wanted)
        if narrow is None:
            return None
        inputs[addend] = narrow
    n, k = weight_sizes(fused)
    parameters = MatmulParameters(
        n=n,
        k=k,
        dtype=name,
        weight_layout="nk" if fused.transposed else "kn",
        out_dtype=None if out == name else out,
        bias=fused.bias is not None,
        activation=fused.activation,
        residual=fused.residual is not None,
    )
    return Found(parameters, inputs, {var: 0}, between(graph, fused.product, var))


@dataclass(frozen=True)
class NormalizedProduct:
    """``activation(norm(a @ weight + bias)) + residual``, each of which may be missing, or the activation of all.

    ``fused`` has all but the normalization. The activation is that of the sum if it ``is_last``.
    """

    fused: Fused
    norm: Normalized | None
    is_last: bool


def normalized_product(graph: Graph, expr: relax.Expr) -> NormalizedProduct | None:
    """``expr`` as a product with a weight, and a batch normalization or an activation behind a residual, or both."""
    expr = before_reshape(graph, expr)
    outer = activated(graph, graph.variable(graph.value(expr)))
    call = graph.call(expr if outer is None else before_reshape(graph, outer.x), "relax.add")
    if call is not None and graph.same_shape(*map(shape, call.args)):
        for inner, residual in (call.args, reversed(call.args)):
            found = None if sole_reader(graph, inner) is None else _normalized(graph, inner)
            if found is None or (outer is not None and found.fused.activation is not None):
                continue
            fused = replace(found.fused, residual=residual)
            if outer is not None:
                return replace(found, fused=replace(fused, activation=outer.activation), is_last=True)
            return replace(found, fused=fused) if found.norm is not None else None
    found = _normalized(graph, expr)
    return found if found is not None and found.norm is not None else None


def _normalized(graph: Graph, expr: relax.Expr) -> NormalizedProduct | None:
    """``expr`` as an activation of a normalized, biased product, of which all but the product may be missing."""
    expr = before_reshape(graph, expr)
    found = activated(graph, graph.variable(graph.value(expr)))
    inner = expr if found is None else before_reshape(graph, found.x)
    norm = batch_normalized(graph, inner)
    fused = biased_product(graph, inner if norm is None else norm.x)
    if fused is None:
        return None
    return NormalizedProduct(replace(fused, activation=None if found is None else found.activation), norm, False)


def _is_widened_for_generated_code(graph: Graph, var: relax.Var) -> bool:
    """Whether ``var`` is a rounded result, widened again for what is computed element by element of it.

    That widens what it reads at no cost, while results that were not rounded would be written and read at twice the
    bytes: a convolution's, in front of a batch normalization.
    """
    call = graph.call(var, "relax.astype")
    if call is None or DataType(dtype(call.args[0])).bits >= DataType(dtype(var)).bits:
        return False
    users = graph.users(var)
    return bool(users) and all(graph.call(user, *_NORMALIZING) is not None for user in users)
