"""Random operators on tensors whose axes lie in another order in memory.

PyTorch draws numbers in the order of memory, and in compiled code every tensor is contiguous: on such a tensor the
same seed would give an element another number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.dynamo.layout import layout_of

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        *("native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "normal_functional", "uniform"),
        *("exponential", "log_normal", "cauchy", "geometric", "poisson"),
    )
)
"""Random operators that draw one number for each element of their first argument."""


def draw_in_order(graph: fx.Graph) -> None:
    """Have random operators draw for tensors with their axes in the order of memory, and permute the results back."""
    for node in list(graph.nodes):
        if not isinstance(node.target, OpOverload) or node.target._schema.name not in _ELEMENTWISE:
            continue
        source = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        layout = layout_of(value) if isinstance(value, torch.Tensor) else None
        if isinstance(source, fx.Node) and layout is not None and not layout.expanded:
            _draw_permuted(graph, node, source, layout.order)


def _draw_permuted(graph: fx.Graph, node: fx.Node, source: fx.Node, order: Sequence[int]) -> None:
    shape = source.meta["val"].shape
    results = [node] if isinstance(node.meta["val"], torch.Tensor) else list(node.users)
    if any(str(each.meta["val"].shape) != str(shape) for each in results):
        return
    with graph.inserting_before(node):
        laid = _permuted(graph, source, order)
    node.args = (laid, *node.args[1:])
    back = sorted(range(len(order)), key=order.__getitem__)
    for each in results:
        traced = each.meta["val"]
        users = list(each.users)
        each.meta = {**each.meta, "val": traced.permute(list(order))}
        with graph.inserting_after(each):
            result = _permuted(graph, each, back)
        for user in users:
            user.replace_input_with(each, result)
    whole = node.meta["val"]
    if isinstance(whole, tuple | list):
        node.meta = {**node.meta, "val": tuple(each.permute(list(order)) for each in whole)}


def _permuted(graph: fx.Graph, source: fx.Node, order: Sequence[int]) -> fx.Node:
    node = graph.call_function(torch.ops.aten.permute.default, (source, list(order)))
    node.meta = {**source.meta, "val": source.meta["val"].permute(list(order))}
    return node
