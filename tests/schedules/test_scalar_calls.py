"""Functions of the C library, of one value that a whole vector is computed with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tkc

FUNCTIONS = [torch.expm1, torch.log1p, torch.acosh, torch.asinh, torch.atanh, torch.tan, torch.atan, torch.log10]
ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [F.silu, F.gelu, torch.tanh, torch.sigmoid, F.softplus, F.elu]


class Activated(nn.Module):
    """Every activation of every function of one value, added to a vector; and the same of elements that are taken."""

    def forward(self, value: Tensor, vector: Tensor, indices: Tensor) -> list[Tensor]:
        """The sums, then what is taken."""
        results = [activate(function(value)) for function in FUNCTIONS for activate in ACTIVATIONS]
        return [result + vector for result in results] + [result[indices] for result in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_activations_of_one_value(dtype: torch.dtype) -> None:
    """TVM's vectorizer stopped at variables that are bound to such a call."""
    inputs = torch.tensor([0.6], dtype=dtype), torch.linspace(-1, 1, 37, dtype=dtype), torch.zeros(5, dtype=torch.int64)
    executable = tkc.compile(torch.export.export(Activated(), inputs))
    for found, expected in zip(executable(*inputs), Activated()(*inputs), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


class Chain(nn.Module):
    """A function of itself, eight times."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """The last result."""
        for _ in range(8):
            x = self.function(x)
        return x


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "remainder": lambda x: torch.remainder(x * 0.75, 2.5),
    "fmod": lambda x: torch.fmod(x * 0.75, 2.5),
    "expm1": lambda x: F.silu(torch.expm1(x * 0.5)),
    "log1p": lambda x: torch.sigmoid(torch.log1p(x)),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, dtype: torch.dtype) -> None:
    """Of such calls, each on what is made of the one before."""
    x = (torch.linspace(0, 2, 37)).to(dtype)
    found = tkc.compile(torch.export.export(Chain(CHAINS[name]), (x,)))(x)
    exact = Chain(CHAINS[name])(x.double())
    own = (Chain(CHAINS[name])(x).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 2 * own + 8 * torch.finfo(dtype).eps
