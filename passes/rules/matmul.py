"""Matmul with a weight, and its epilogue, to the ``matmul`` kernel.

``activation(a @ weight + bias) + residual``, where bias, activation and residual may each be missing: ``F.linear`` and
what follows it. Whatever else reads the matmul or a step of the epilogue keeps these steps out of the kernel.
"""

from __future__ import annotations

from tvm import DataType, relax

from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import as_matrix, as_vector, kernel_call
from tkc.passes.graph.readers import between
from tkc.passes.recognizers.weight_matmul import fused_product, unfit, weight_sizes
from tkc.passes.rules.rule import Rule, Site, operators

_NORMALIZING = ("relax.subtract", "relax.multiply")  # what a batch normalization does first


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    if (product := graph.call(var, "relax.matmul")) is not None and (reason := unfit(graph, product)) is not None:
        return Refusal(reason)
    fused, out = fused_product(graph, var), dtype(var)
    if fused is None or not is_kernel_float(out) or _is_widened_for_generated_code(graph, var):
        return None
    name = dtype(fused.a)
    if not is_kernel_float(name):
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


_LAYOUTS = {"a": as_matrix, "weight": lambda weight: weight, "bias": as_vector, "residual": as_matrix}


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [_LAYOUTS[name](tensor) for name, tensor in found.inputs.items()])


MATMUL = Rule(
    name="matmul",
    kernel="matmul",
    roots=operators(
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "astype"),
        *("matmul", "add", "multiply", "divide", "maximum"),
    ),
    recognize=_recognize,
    call=_call,
    before=("normalization",),
)
