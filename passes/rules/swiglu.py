"""SwiGLU to the ``swiglu`` kernel.

``F.silu(gate) * up``, also written ``gate * torch.sigmoid(gate) * up``, and a cast of it; gate and up may be the halves
of one tensor.
"""

from __future__ import annotations

from tkc.passes.graph.bindings import dtype
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import as_matrix, kernel_call
from tkc.passes.recognizers.swiglu import operands_of, swiglu_factors
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Found | Refusal | None:
    factors = swiglu_factors(site.graph, site.var)
    operands = None if factors is None else operands_of(site.graph, *factors, dtype(site.var))
    if operands is None or isinstance(operands, Refusal):
        return operands
    return Found(operands.parameters, operands.inputs, {site.var: 0})


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [as_matrix(tensor) for tensor in found.inputs.values()])


SWIGLU = Rule(
    name="swiglu",
    kernel="swiglu",
    roots=operators("multiply", "divide", "astype"),  # the matcher takes x * y / z and x / z * y for each other
    recognize=_recognize,
    call=_call,
)
