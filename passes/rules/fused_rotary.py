"""Rotary embedding of queries and keys by the same angles, to one call of the ``rotary`` kernel.

``rope(q, cos, sin)`` and ``rope(k, cos, sin)``, where :mod:`tkc.passes.recognizers.rotary` says what ``rope`` is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm import relax, tirx

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, shape
from tkc.passes.recognizers.rotary import Embedding, embedding, embedding_call
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Embedding | None:
    last = embedding(site.graph, site.var)
    if not isinstance(last, Embedding):
        return None  # The rule for a single tensor says why.
    first = next((e for e in _embeddings_before(site) if _are_alike(site.graph, e, last)), None)
    if first is None:
        return None
    queries, keys = sorted((first, last), key=lambda tensor: -tensor.parameters.heads)
    of_keys = {"keys": keys.inputs["x"]}
    if "weight" in keys.inputs:
        of_keys["key_weight"] = keys.inputs["weight"]
    return replace(
        queries,
        parameters=replace(queries.parameters, key_heads=keys.parameters.heads),
        inputs={**queries.inputs, **of_keys},
        replaces={queries.var: 0, keys.var: 1},
        consumed=queries.consumed | keys.consumed,
        swapped=queries.swapped | keys.swapped,
    )


def _embeddings_before(site: Site) -> Iterator[Embedding]:
    """What is embedded before the site's own tensor, the nearest first."""
    found = (embedding(site.graph, var) for var in site.graph.before(site.var))
    return (tensor for tensor in found if isinstance(tensor, Embedding))


def _are_alike(graph: Graph, left: Embedding, right: Embedding) -> bool:
    """Whether two tensors differ in nothing but their values, their weights' values and their number of heads."""
    return (
        left.parameters == replace(right.parameters, heads=left.parameters.heads)
        and graph.same_shape(_without_heads(left), _without_heads(right))
        and _are_same_tables(graph, left.inputs["cos"], right.inputs["cos"])
        and _are_same_tables(graph, left.inputs["sin"], right.inputs["sin"])
    )


def _without_heads(tensor: Embedding) -> tuple[tirx.PrimExpr, ...]:
    """The batch, the sequence and the size of a head."""
    heads = 2 if tensor.parameters.layout == "bshd" else 1
    return tuple(size for axis, size in enumerate(shape(tensor.inputs["x"])) if axis != heads)


def _are_same_tables(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    """Whether two tables hold the same numbers in the same order, which may be computed and viewed for each tensor."""
    return graph.alike(*(graph.through(table, *SHAPE_CHANGES) for table in (left, right)))


FUSED_ROTARY = Rule(
    name="fused_rotary",
    kernel="rotary",
    roots=operators("add", "subtract", "concat", "reshape", "astype"),
    recognize=_recognize,
    call=embedding_call,
    before=("rotary",),
)
