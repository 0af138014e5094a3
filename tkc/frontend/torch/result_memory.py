"""Whose memory a program's results lie in: what PyTorch returns as a copy is one, also where its numbers are known."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.contracts import GIVEN_MEMORY


def result_memory(graph: fx.Graph, results: Iterable[str]) -> list[int]:
    """For each result, a node's name, the number of its memory.

    It is :data:`GIVEN_MEMORY` for an argument, a weight, or a view of one. A view of another result lies in that one's
    memory. The fake tensors of the graph tell where an operator returns a view or a copy, as it comes (``to``,
    ``reshape``).
    """
    nodes = {node.name: node for node in graph.nodes}
    numbers: dict[fx.Node, int] = {}
    made = [_maker(nodes[name]) for name in results]
    return [
        GIVEN_MEMORY if node.op in ("placeholder", "get_attr") else numbers.setdefault(node, len(numbers))
        for node in made
    ]


def _maker(node: fx.Node) -> fx.Node:
    while (source := _viewed(node)) is not None:
        node = source
    return node


def _viewed(node: fx.Node) -> fx.Node | None:
    """The operand of ``node`` in whose memory its value lies; of a part of several results, the operator's operand."""
    call = node.args[0] if node.target is operator.getitem else node
    if not isinstance(call, fx.Node) or not _may_view(call):
        return None
    memory = _memory(node)
    return next((each for each in call.all_input_nodes if memory is not None and _memory(each) == memory), None)


def _may_view(call: fx.Node) -> bool:
    """Whether its operator returns an operand's memory by its schema; in a trace ``lift_fresh_copy`` does so, too."""
    target = call.target
    return isinstance(target, OpOverload) and any(each.alias_info is not None for each in target._schema.returns)


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)
