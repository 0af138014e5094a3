"""The weighted sum of what a token's experts returned to the ``moe.combine`` kernel.

``(rows * weights[:, None])[inverse].view(tokens, top_k, channels).sum(1)`` and a cast of it, where ``rows`` are in the
order of their experts and ``inverse`` says where each token's copies are.
"""

from __future__ import annotations

from tkc.passes.graph.bindings import dtype
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.layout import kernel_call
from tkc.passes.recognizers.expert_sums import Combined, combined
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Found | Refusal | None:
    cast = site.graph.call(site.var, "relax.astype")
    found = combined(site.graph, site.var if cast is None else cast.args[0], dtype(site.var))
    return Found(found.parameters, found.inputs, {site.var: 0}) if isinstance(found, Combined) else found


MOE_COMBINE = Rule(
    name="moe_combine",
    kernel="moe.combine",
    roots=operators("sum", "astype"),
    recognize=_recognize,
    call=kernel_call,
    before=("moe_permute",),
)
