"""Finds the normalization of what experts computed for a token, added up with a residual, for one kernel."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph
from tkc.passes.graph.readers import feeds_only
from tkc.passes.rules.moe_combine import Combined, combined
from tkc.passes.rules.normalization import NORMALIZED, PARTS, normalization_call
from tkc.passes.rules.rule import KernelCall, Match, Rule

_BETWEEN = (*SHAPE_CHANGES, *PARTS)


def _check(match: Match) -> KernelCall | None:
    """Refusals are left to the rules for the two halves."""
    call = normalization_call(match)
    if not isinstance(call, KernelCall) or not call.parameters.residual:
        return None
    first, second, *vectors = call.inputs
    for term, residual in ((first, second), (second, first)):
        found = _combined_only_for(match.graph, term, call)
        if found is not None:
            parameters = replace(call.parameters, combined=found.parameters)
            return replace(call, parameters=parameters, inputs=(*found.inputs, residual, *vectors))
    return None


def _combined_only_for(graph: Graph, term: relax.Expr, call: KernelCall) -> Combined | None:
    """What ``term`` is combined of, if nothing reads it but what ``call`` replaces."""
    sum_ = graph.through_views_and_casts(term)
    found = combined(graph, sum_, call.parameters.dtype)
    if not isinstance(found, Combined) or found.parameters.channels != call.parameters.channels:
        return None
    return found if any(feeds_only(graph, sum_, var, _BETWEEN) for var in call.replaces) else None


NORMALIZED_COMBINE = Rule(
    name="normalized combination of experts",
    kernel="normalization",
    pattern=NORMALIZED,
    parts={},
    check=_check,
)
