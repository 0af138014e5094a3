"""Functions of numbers that a model makes of nothing, such as an embedding's frequencies, as PyTorch rounds them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

_MOST_ELEMENTS = 1 << 16
"""Of a tensor that is computed while a model is imported, and then is one of its constants."""

_ROUNDED = frozenset(
    f"aten.{name}"
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "rsqrt", "sigmoid", "tanh"),
        *("sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "atan2", "erf", "erfinv"),
    )
)
"""Operators of which two libraries give results that differ in their last bits.

What follows may multiply that: of ``sin(1000 * t * exp(-arange(128) / 14))``, the embedding of a time step ``t`` of
239, one bit of the exponential is 0.013.
"""

_WIDE = (torch.float32, torch.float64)


def known_values(graph: fx.Graph) -> Mapping[fx.Node, torch.Tensor]:
    """The results of :data:`_ROUNDED` operators in ``graph`` that depend on no input, weight or random number."""
    values: dict[fx.Node, torch.Tensor | None] = {}
    found = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        name, _, _ = str(node.target).rpartition(".")
        if name in _ROUNDED and (value := _value(node, values)) is not None and value.dtype in _WIDE:
            found[node] = value
    return found


def _value(node: fx.Node, values: dict[fx.Node, torch.Tensor | None]) -> torch.Tensor | None:
    """What ``node`` is in every call; ``None`` where that is not known. ``values`` are those of nodes before."""
    if node not in values:
        values[node] = _computed(node, values)
    return values[node]


def _computed(node: fx.Node, values: dict[fx.Node, torch.Tensor | None]) -> torch.Tensor | None:
    made = node.meta.get("val")
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not isinstance(made, torch.Tensor):
        return None
    if not all(isinstance(size, int) for size in made.shape) or prod(made.shape) > _MOST_ELEMENTS:
        return None
    if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return None
    if any(_value(source, values) is None for source in node.all_input_nodes):
        return None
    # The model may be for a device that is not here, and numbers on it are what is computed of them anywhere.
    kwargs: dict[str, Any] = {name: value for name, value in node.kwargs.items() if name != "device"}
    args, kwargs = fx.node.map_arg((node.args, kwargs), lambda source: values[source])
    with torch.no_grad():
        found: torch.Tensor = node.target(*args, **kwargs)
    return found
