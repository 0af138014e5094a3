"""SwiGLU and the dynamic FP8 quantization of its result to the ``swiglu`` kernel.

``y = F.silu(gate) * up``, ``scale = y.abs().amax(...) / FP8_MAX`` and ``(y / scale).to(torch.float8_e4m3fn)``, with a
scale for each token, group of channels, block or channel, and with or without a clamp.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.passes.graph.bindings import Graph, dtype, shape
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import as_matrix, kernel_call
from tkc.passes.recognizers.fp8_quantization import fp8_cast, quantization
from tkc.passes.recognizers.fp8_scales import variables_of
from tkc.passes.recognizers.swiglu import operands_of, swiglu_factors
from tkc.passes.rules.rule import Rule, Site, operators

_SCALES = f"a token, {QUANTIZATION_BLOCK} channels, a block or a channel"


def _recognize(site: Site) -> Found | Refusal | None:
    graph = site.graph
    cast = fp8_cast(graph, site.var)
    found = None if cast is None else quantization(graph, cast)
    factors = None if found is None else swiglu_factors(graph, found.base, cast=False)
    if cast is None or found is None or factors is None:
        return None
    scale = found.scale
    if (reason := found.unfit(graph)) is not None:
        return Refusal(reason)
    if scale.minimum <= 0:
        return Refusal("its scales have no lower bound, so that zeros would be divided by zero")
    shared = found.shared(graph)
    if shared is None:
        return Refusal(found.not_shared(graph, _SCALES))
    operands = operands_of(graph, *factors, _narrowest(graph, *factors))
    if operands is None or isinstance(operands, Refusal):
        return operands
    parameters = replace(
        operands.parameters,
        scale=shared,
        quantized_dtype=cast.dtype,
        power_of_two_scales=scale.power_of_two,
        minimum_amax=scale.minimum,
    )
    replaces = {**dict.fromkeys(variables_of(graph, replace(scale, inverted=False)), 1), site.var: 0}
    sizes = {"token_blocks": shape(found.values)[0]} if shared == "block" else {}
    return Found(parameters, operands.inputs, replaces, sizes=sizes)


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [as_matrix(tensor) for tensor in found.inputs.values()])


def _narrowest(graph: Graph, gate: relax.Expr, up: relax.Expr) -> str:
    """The dtype that both operands had before they were widened, or float32 if those differ."""
    dtypes = {dtype(graph.before_widening(operand)) for operand in (gate, up)}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


QUANTIZED_SWIGLU = Rule(
    name="quantized_swiglu",
    kernel="swiglu",
    roots=operators("astype"),
    recognize=_recognize,
    call=_call,
    before=("gated_matmul", "gated_grouped_matmul", "swiglu"),
)
