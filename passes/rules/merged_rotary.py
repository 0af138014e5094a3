"""Finds rotary embedding of queries and of keys by the same angles, for one kernel call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm import relax, tirx

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, shape
from tkc.passes.rules.rotary import ROTARY, Embedding, embedding
from tkc.passes.rules.rule import KernelCall, Match, Rule


def _check(match: Match) -> KernelCall | None:
    last = embedding(match.graph, match.var)
    if not isinstance(last, Embedding):
        return None  # The rule for a single tensor says why.
    first = next((e for e in _embeddings_before(match) if _are_alike(match.graph, e, last)), None)
    if first is None:
        return None
    queries, keys = sorted((first, last), key=lambda tensor: -tensor.parameters.heads)
    parameters = replace(queries.parameters, key_heads=keys.parameters.heads)
    replaces = {queries.var: queries.restored(0), keys.var: keys.restored(1)}
    return KernelCall(parameters, (*queries.inputs, keys.x, *keys.weights), replaces)


def _embeddings_before(match: Match) -> Iterator[Embedding]:
    """What is embedded before the match's own tensor, the nearest first."""
    found = (embedding(match.graph, var) for var in match.graph.before(match.var))
    return (tensor for tensor in found if isinstance(tensor, Embedding))


def _are_alike(graph: Graph, left: Embedding, right: Embedding) -> bool:
    """Whether two tensors differ in nothing but their values, their weights' values and their number of heads."""
    return (
        left.parameters == replace(right.parameters, heads=left.parameters.heads)
        and graph.same_shape(_without_heads(left), _without_heads(right))
        and _are_same_tables(graph, left.cos, right.cos)
        and _are_same_tables(graph, left.sin, right.sin)
    )


def _without_heads(tensor: Embedding) -> tuple[tirx.PrimExpr, ...]:
    """The batch, the sequence and the size of a head."""
    heads = 2 if tensor.parameters.layout == "bshd" else 1
    return tuple(size for axis, size in enumerate(shape(tensor.x)) if axis != heads)


def _are_same_tables(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    """Whether two tables hold the same numbers in the same order, which may be computed and viewed for each tensor."""
    return graph.alike(*(graph.through(table, *SHAPE_CHANGES) for table in (left, right)))


MERGED_ROTARY = Rule(
    name="merged rotary embeddings",
    kernel="rotary",
    pattern=ROTARY.pattern,
    parts={},
    check=_check,
)
