"""Grouped matmul to the ``matmul.grouped`` kernel.

``torch._grouped_mm(a, weight, offsets)`` as the frontends write it, with the gather ``a = x[rows]`` where nothing else
reads the gathered rows.
"""

from __future__ import annotations

from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.layout import kernel_call
from tkc.passes.graph.readers import between
from tkc.passes.recognizers.grouped_matmul import gathered, grouped_product
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    product = grouped_product(graph, var)
    if product is None or isinstance(product, Refusal):
        return product
    whole = gathered(graph, product, var, site.target)
    consumed = frozenset() if whole is product else between(graph, product.inputs["a"], var)
    return Found(whole.parameters, whole.inputs, {var: 0}, consumed)


GROUPED_MATMUL = Rule(
    name="grouped_matmul",
    kernel="matmul.grouped",
    roots=operators("call_tir"),
    recognize=_recognize,
    call=kernel_call,
)
