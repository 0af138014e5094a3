"""MoE combine fused with the residual and the normalization that follow, to the ``normalization`` kernel.

``norm(residual + combined)``, where ``combined`` is the weighted sum of a token's experts and serves nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from tkc.passes.graph.found import Found, KernelCall
from tkc.passes.graph.layout import kernel_call
from tkc.passes.graph.readers import between, serves_only
from tkc.passes.recognizers.expert_sums import Combined, combined
from tkc.passes.recognizers.normalization import NORMALIZATION_ROOTS, normalization, normalization_inputs
from tkc.passes.rules.rule import Rule, Site


def _recognize(site: Site) -> Found | None:
    """Refusals are left to the rules for the two halves."""
    graph, norm = site.graph, normalization(site.graph, site.var)
    if not isinstance(norm, Found) or not norm.parameters.residual:
        return None
    for term, residual in (("x", "residual"), ("residual", "x")):
        sum_ = graph.through_views_and_casts(norm.inputs[term])
        experts = combined(graph, sum_, norm.parameters.dtype)
        if not isinstance(experts, Combined) or experts.parameters.channels != norm.parameters.channels:
            continue
        if serves_only(graph, sum_, *norm.replaces):
            vectors = {role: norm.inputs[role] for role in ("weight", "bias") if role in norm.inputs}
            inputs = {**experts.inputs, "residual": norm.inputs[residual], **vectors}
            parameters = replace(norm.parameters, combined=experts.parameters)
            return Found(parameters, inputs, norm.replaces, between(graph, sum_, *norm.replaces))
    return None


def _call(found: Found) -> KernelCall:
    return kernel_call(found, normalization_inputs(found))


NORMALIZED_COMBINE = Rule(
    name="moe_combine_rms_norm",
    kernel="normalization",
    roots=NORMALIZATION_ROOTS,
    recognize=_recognize,
    call=_call,
    before=("moe_combine", "normalization"),
)
