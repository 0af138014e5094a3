"""A matmul with a weight and its epilogue, as the ``matmul`` kernel computes them."""

from __future__ import annotations

from tvm import DataType, relax

from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.readers import between
from tkc.passes.recognizers.weight_matmul import fused_product, unfit, weight_sizes

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
