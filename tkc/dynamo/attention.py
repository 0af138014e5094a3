"""The attention operators that PyTorch chooses for a device, as the one that a model calls, which TKC has kernels for.

AOTAutograd traces ``scaled_dot_product_attention`` as what PyTorch dispatches it to.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_MASK = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: "attn_mask",
    _aten._scaled_dot_product_flash_attention.default: None,
    _aten._scaled_dot_product_efficient_attention.default: "attn_bias",
    _aten._scaled_dot_product_cudnn_attention.default: "attn_bias",
}
"""The operators, each with the name of its mask, if it takes one."""


def restore_attention(graph: fx.Graph) -> None:
    """Call ``scaled_dot_product_attention`` in place of its device's own operator.

    That one stays where dropout is on, and where its other results are used, as in a forward pass for its backward.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _MASK:
            _restore(graph, node)


def _restore(graph: fx.Graph, node: fx.Node) -> None:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]  # in _MASK
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    read = [user for user in node.users if user.users]
    are_outputs = all(user.target is operator.getitem and user.args[1] == 0 for user in read)
    if not read or not are_outputs or given.get("dropout_p", 0.0):
        return
    query, key, value = given["query"], given["key"], given["value"]
    mask = _MASK[node.target]  # type: ignore[index]  # it is there
    named = {
        "attn_mask": given.get(mask) if mask else None,
        "is_causal": given.get("is_causal", False),
        "scale": given.get("scale"),
        "enable_gqa": str(query.meta["val"].shape[1]) != str(key.meta["val"].shape[1]),
    }
    with graph.inserting_before(node):
        whole = graph.call_function(_aten.scaled_dot_product_attention.default, (query, key, value), named)
    whole.meta = {**read[0].meta}
    for user in read:
        user.replace_all_uses_with(whole)
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)  # as dead code it would stay: with dropout it draws numbers
