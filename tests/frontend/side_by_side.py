"""Functions of tensors, all in one compiled model, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.frontend import execution
from tkc.frontend.torch.importer import import_torch

Function = Callable[..., Any]


class Several(nn.Module):
    """Calls every function on the same inputs."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.functions = dict(functions)

    def forward(self, *inputs: torch.Tensor) -> dict[str, Any]:
        """Each function's result by its name."""
        return {name: function(*inputs) for name, function in self.functions.items()}


def compare(
    functions: Mapping[str, Function],
    *calls: Sequence[torch.Tensor],
    tolerance: float = 2e-6,
    dynamic_shapes: Sequence[Any] | None = None,
) -> None:
    """Import the functions with the first call's inputs, and compare the results of every call.

    Dtypes, shapes and the places of NaN and infinity are equal; numbers to ``tolerance`` of the largest one. Numbers of
    16 bits are compared with float64, to a unit in their last place and the tolerance.
    """
    model = Several(functions)
    shapes = None if dynamic_shapes is None else {"inputs": tuple(dynamic_shapes)}
    run = execution.executable(import_torch(model, tuple(calls[0]), dynamic_shapes=shapes))
    for inputs in calls:
        expected = model(*inputs)
        reference = expected
        if any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in inputs):
            reference = model(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
        names = [name for name, value in expected.items() for _ in pytree.tree_leaves(value)]
        leaves = (run(*inputs), pytree.tree_leaves(expected), pytree.tree_leaves(reference))
        wrong = {}
        for name, found, eager, exact in zip(names, *leaves, strict=True):
            narrow = torch.finfo(eager.dtype).eps if eager.dtype.itemsize == 2 and eager.is_floating_point() else 0.0
            error = execution.relative_error(found, exact.to(eager.dtype))
            if error > (tolerance + 2 * narrow if eager.is_floating_point() else 0):
                wrong[name] = error
        assert wrong == {}
