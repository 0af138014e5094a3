"""The graphs and tensors that nodes of a graph stand for and call."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
from torch import fx

from tkc.frontend.torch.data_sizes import symbols_of


def subgraph(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a ``get_attr`` node stands for, if it is one."""
    module = node.graph.owning_module
    found = getattr(module, str(node.target), None) if node.op == "get_attr" and module is not None else None
    return found if isinstance(found, fx.GraphModule) else None


def held_tensor(node: fx.Node) -> torch.Tensor | None:
    """The tensor that a ``get_attr`` node stands for, if it is one: what a branch makes of Python's numbers."""
    module = node.graph.owning_module
    found = getattr(module, str(node.target), None) if node.op == "get_attr" and module is not None else None
    return found.detach() if isinstance(found, torch.Tensor) and not found.is_complex() else None


def subgraphs(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a node calls."""
    return [found for given in node.all_input_nodes if (found := subgraph(given)) is not None]


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    """What the graph of ``module`` is called with."""
    return list(module.graph.find_nodes(op="placeholder"))


def used_symbols(node: fx.Node) -> Iterator[sympy.Symbol]:
    """The symbols in ``node``, what it is called with, and the graphs that it calls."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for leaf in value if isinstance(value, list | tuple) else [value]:
            yield from symbols_of(leaf)
            if isinstance(leaf, torch.SymBool | torch.SymFloat):
                yield from leaf.node.expr.free_symbols
    for module in subgraphs(node):
        for inner in module.graph.nodes:
            yield from used_symbols(inner)
