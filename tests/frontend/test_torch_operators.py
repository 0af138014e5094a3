"""PyTorch operators, one by one, against PyTorch itself: two sizes of every symbolic model, float32 and integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import execution
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from tkc.frontend.torch import import_torch

Function = Callable[..., object]


class Several(nn.Module):
    """Calls every function on the same inputs."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> dict[str, object]:
        return {name: function(*inputs) for name, function in self.functions.items()}


def check(functions: Mapping[str, Function], sizes: tuple[int, ...], *make: Callable[[int], torch.Tensor]) -> None:
    """Import once with a symbolic first axis, run at each size, and compare."""
    model = Several(functions)
    rows = Dim("rows", min=2, max=64)
    inputs = [function(sizes[0]) for function in make]
    imported = import_torch(model, tuple(inputs), dynamic_shapes={"inputs": tuple({0: rows} for _ in inputs)})
    assert set(imported.signature.sizes) == {"rows"}
    run = execution.executable(imported)
    for size in sizes:
        inputs = [function(size) for function in make]
        for name, function in functions.items():
            check.name = name
        expected = model(*inputs)
        found = run(*inputs)
        leaves = [(name, leaf) for name, value in expected.items() for leaf in torch.utils._pytree.tree_leaves(value)]
        errors = {name: execution.relative_error(f, e) for (name, e), f in zip(leaves, found, strict=True)}
        assert {name: error for name, error in errors.items() if error > 1e-5} == {}
