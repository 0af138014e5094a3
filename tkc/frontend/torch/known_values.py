"""Functions of numbers that a model makes of nothing, such as an embedding's frequencies, as PyTorch rounds them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.callable_operators import draws_numbers
from tkc.frontend.torch.converters.emitter import source_of

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
    """The results of :data:`_ROUNDED` operators in ``graph`` that depend on no input, weight or random number.

    They are computed on the model's device, if it is here.
    """
    values: dict[fx.Node, torch.Tensor] = {}
    for node in graph.nodes:
        if _is_known(node, values):
            values[node] = _computed(node, values)
    return {node: value for node, value in values.items() if _is_rounded(node) and value.dtype in _WIDE}


def _is_rounded(node: fx.Node) -> bool:
    name, _, _ = str(node.target).rpartition(".")
    return name in _ROUNDED


def _is_known(node: fx.Node, values: Mapping[fx.Node, torch.Tensor]) -> bool:
    """Whether ``node`` is a tensor that is the same in every call, and small. ``values`` are those of nodes before."""
    made = node.meta.get("val")
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not isinstance(made, torch.Tensor):
        return False
    if not all(isinstance(size, int) for size in made.shape) or prod(made.shape) > _MOST_ELEMENTS:
        return False
    if node.target.namespace not in ("aten", "prims") or "empty" in str(node.target):
        return False
    if node.target._schema.is_mutable or draws_numbers(node.target):
        return False
    return all(source in values for source in node.all_input_nodes)


def _computed(node: fx.Node, values: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor:
    kwargs: dict[str, Any] = dict(node.kwargs)
    if "device" in kwargs and not torch.cuda.is_available():
        kwargs["device"] = torch.device("cpu")  # the model's may not be here
    args, kwargs = fx.node.map_arg((node.args, kwargs), lambda source: values[source])
    assert isinstance(node.target, OpOverload)
    # Autocast of the compilation's own surroundings is none of the model's.
    with torch.no_grad(), torch.autocast(node.meta["val"].device.type, enabled=False):
        try:
            found: torch.Tensor = node.target(*args, **kwargs)
        except RuntimeError as error:  # fake tensors, which the model was traced with, check no numbers
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): PyTorch itself refuses to compute it: "
                f"{str(error).splitlines()[0]}. Correct the model."
            ) from error
    return found
