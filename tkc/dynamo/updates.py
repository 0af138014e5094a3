"""What a graph of AOTAutograd writes into its inputs: ``copy_`` nodes behind all that it computes.

Compiled code writes into most of these inputs itself, a key/value cache where it stands; ``copy_`` of PyTorch does the
others when the new values are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.dynamo.layout import is_contiguous
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.mutation import written_memory

_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Updates:
    """``in_place`` are the inputs that the program writes into, each with its new value; ``copies`` the ``copy_`` nodes
    that are left to PyTorch, in their order."""

    in_place: Mapping[fx.Node, fx.Node]
    copies: tuple[fx.Node, ...]


def take_updates(graph: fx.Graph, device: torch.device, *, in_place: bool) -> Updates:
    """The updates of a graph that runs on ``device``. It returns inputs where it returned their ``copy_``, and has
    ``copy_`` nodes only for what is not written ``in_place``.

    Raises :class:`UnsupportedModelError` where the graph writes otherwise than by one ``copy_`` behind all reads.
    """
    written = [node for node in graph.nodes if any(memory.op == "placeholder" for memory in written_memory(node))]
    places = {node: place for place, node in enumerate(graph.nodes)}
    updates: dict[fx.Node, fx.Node] = {}
    copies: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for node in written:
        target, value = _checked(node, places)
        if target in seen:
            raise UnsupportedModelError(f"the graph writes into its input {target.name} more than once")
        seen.add(target)
        node.replace_all_uses_with(target)
        if in_place and _fits(target, value, device):
            updates[target] = value
            graph.erase_node(node)
        else:
            copies.append(node)
    for node in copies:
        # Other updates are done before: what is copied must not be an input that they change.
        if _is_of_an_input(value := node.all_input_nodes[-1]):
            with graph.inserting_before(node):
                kept = graph.call_function(torch.ops.aten.clone.default, (value,))
            kept.meta = dict(value.meta)
            node.replace_input_with(value, kept)
    return Updates(updates, tuple(copies))


def _checked(node: fx.Node, places: Mapping[fx.Node, int]) -> tuple[fx.Node, fx.Node]:
    """What ``node`` writes into and its new value."""
    target, value = (*node.args[:2], None, None)[:2]
    if node.target != _COPY or not isinstance(target, fx.Node) or not isinstance(value, fx.Node):
        raise UnsupportedModelError(f"the graph writes into an input by {node.target}, at {node.name}")
    later = [user for user in target.users if places[user] > places[node] and user.op != "output"]
    if target.op != "placeholder" or later or any(user.op != "output" for user in node.users):
        raise UnsupportedModelError(f"the graph reads {target.name}, an input, after it has written into it")
    return target, value


def _fits(target: fx.Node, value: fx.Node, device: torch.device) -> bool:
    """Whether compiled code can write the value: computed, of the input's shape and dtype, and the input contiguous."""
    old, new = target.meta["val"], value.meta["val"]
    return (
        value.op == "call_function"
        and not _is_of_an_input(value)
        and old.device == new.device == device
        and old.dtype == new.dtype
        and not old.is_complex()
        and not old.is_neg()
        # As text: to compare symbolic sizes could add a condition to the graph.
        and str(tuple(old.shape)) == str(tuple(new.shape))
        and is_contiguous(old)
    )


def _is_of_an_input(node: fx.Node) -> bool:
    """Whether the node is an input, or a view of one."""
    while node.op == "call_function" and _is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op != "call_function"


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):  # one of several results
        return isinstance(node.meta.get("val"), torch.Tensor)
    returns = node.target._schema.returns
    return bool(returns) and all(result.alias_info is not None for result in returns)
