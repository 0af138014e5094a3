"""What is left of a graph to be done in PyTorch when its tensors are computed: views of them, integers, and copies
into inputs.

Views share memory, also among outputs; generated code returns tensors that do not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.dynamo.layout import is_contiguous, size_hint


@dataclass(frozen=True)
class Tail:
    """``run`` makes the graph's outputs of the values of the nodes ``computed`` and of the inputs at positions
    ``given``, in this order."""

    run: Callable[..., Sequence[Any]]
    computed: tuple[fx.Node, ...]
    given: tuple[int, ...]


def tail_of(graph: fx.Graph, positions: Mapping[fx.Node, int], copies: Sequence[fx.Node] = ()) -> Tail:
    """The tail of ``graph``, whose placeholders have these ``positions``. It does the ``copies``, ``copy_`` nodes."""
    (end,) = graph.find_nodes(op="output")
    leaves: list[fx.Node] = []
    done: set[fx.Node] = set()
    waiting = list(reversed([*end.all_input_nodes, *copies]))
    while waiting:
        node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        if node in copies or (node not in positions and _is_left(node, positions)):
            waiting += reversed(node.all_input_nodes)
        else:
            leaves.append(node)
    computed = [node for node in leaves if node not in positions]
    passed = [node for node in leaves if node in positions]
    tail = fx.Graph()
    made = {node: tail.placeholder(node.name) for node in (*computed, *passed)}
    for node in graph.nodes:
        if node in done and node not in made:
            made[node] = tail.node_copy(node, made.__getitem__)
    outputs: Any = end.args[0]
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    tail.output(tuple(made[each] if isinstance(each, fx.Node) else each for each in outputs))
    run = fx.GraphModule({}, tail).forward
    return Tail(run, tuple(computed), tuple(positions[node] for node in passed))


def _is_left(node: fx.Node, positions: Mapping[fx.Node, int]) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return isinstance(node.args[0].target, OpOverload) and _is_view(node.args[0].target)
    if isinstance(node.meta.get("val"), torch.SymInt | int):
        # A size of an input, or computed from numbers; not what is read out of a tensor.
        is_size = node.target is torch.ops.aten.sym_size.int
        return all(_is_number(given) or (is_size and given in positions) for given in node.all_input_nodes)
    if node.target is torch.ops.aten.as_strided.default:
        return _lies_as_traced(node.all_input_nodes[0], positions)
    return isinstance(node.target, OpOverload) and _is_view(node.target)


def _lies_as_traced(node: fx.Node, positions: Mapping[fx.Node, int]) -> bool:
    """Whether the tail has ``node`` where it lay when it was traced: strides and offsets count from there."""
    while node not in positions and _is_left(node, positions):
        node = node.all_input_nodes[0]
    value = node.meta["val"]
    return node in positions or (is_contiguous(value) and size_hint(value.storage_offset()) == 0)


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | int)


def _is_view(target: OpOverload) -> bool:
    """Whether the operator returns views, whose places in memory follow from their source's alone."""
    schema = target._schema
    if schema.is_mutable or target is torch.ops.aten.as_strided.default:
        return False
    return bool(schema.returns) and all(result.alias_info is not None for result in schema.returns)
