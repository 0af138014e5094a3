"""Values that variables hold in vectors of truth values, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tkc

Function = Callable[[torch.Tensor], torch.Tensor]

# What ``isnan`` asks of a vector, TVM holds in a variable; of a comparison, as a condition makes it, it has no bounds.
FUNCTIONS: dict[str, Function] = {
    "on the right": lambda x: x.isnan() | torch.isnan(torch.isinf(x).float()),
    "on the left": lambda x: torch.isnan(torch.isinf(x).float()) | (x > 1),
    "of an or": lambda x: (x > 0) & torch.isnan((x.isinf() | (x > 1)).float()),
    "in both": lambda x: torch.isnan(torch.isinf(x).float()) | torch.isnan((x > 1).float()),
    "nested": lambda x: (x < 0) | ((x > 1) & (torch.isnan((x.isinf() & (x > 1)).float()) | x.isnan())),
    "an exclusive or": lambda x: torch.logical_xor(x > 0, torch.isnan((x.isinf() | (x > 1)).float())),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("width", [5, 64])
def test_conditions_of_vectors(name: str, width: int) -> None:
    """Of rows that are vectors, and of some that are not."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FUNCTIONS[name](x)

    x = torch.randn(4, width)
    x[0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    assert torch.equal(tkc.compile(Model(), (x,))(x), FUNCTIONS[name](x))
