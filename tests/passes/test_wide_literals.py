"""uint64 scalars that TVM's integer literals do not hold, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import tkc

LARGE = torch.tensor(2**64 - 3, dtype=torch.uint64)
Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "or": lambda x: torch.bitwise_or(x, LARGE),
    "and, on the left": lambda x: torch.bitwise_and(LARGE, x),
    "exclusive or, of the first that a literal does not hold": lambda x: torch.bitwise_xor(
        x, torch.tensor(2**63, dtype=torch.uint64)
    ),
    "the largest that a literal holds": lambda x: torch.bitwise_xor(x, torch.tensor(2**63 - 1, dtype=torch.uint64)),
    "equal": lambda x: x == LARGE,
    "not equal": lambda x: x != LARGE,
    "where": lambda x: torch.where(x == 2, x, LARGE),
    "concatenated": lambda x: torch.cat([x, LARGE[None], x]),
    "full": lambda x: torch.full((2, 3), 2**64 - 5, dtype=torch.uint64),
    "full, of other sizes": lambda x: torch.full_like(x, 2**63 + 7),
    "filled": lambda x: x.clone().fill_(2**64 - 1),
    "to a float": lambda x: LARGE.to(torch.float64) + x.to(torch.float64),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_as_in_pytorch(name: str) -> None:
    """Of operators with such a scalar on either side, and of tensors that are full of it."""
    model = _Model(FUNCTIONS[name])
    x = torch.tensor([2, 0, 2**64 - 3, 2**63, 2**63 + 7], dtype=torch.uint64)
    found, expected = tkc.compile(model, (x,), fallback=False)(x), model(x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


class _Model(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
