"""Chains of elementwise functions that use their argument several times, also in conditions: they compile quickly."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tkc
from tests.frontend import execution
from tkc.frontend.torch.importer import import_torch

SECONDS = 30.0
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "elu": F.elu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "silu": F.silu,
    "logaddexp": lambda x: torch.logaddexp(x, x * 0.5),
    "logsigmoid": F.logsigmoid,
    "clamp": lambda x: x.clamp(-1.0, 1.0) * 1.5,
    "where": lambda x: torch.where(x > 0, x * 0.5, x + 1),
    "where_of_two": lambda x: torch.where((x > 0) & (x < 1) | (x > 2), x * 0.5, x + 1),
}
WHOLE: dict[str, Function] = {
    "where": lambda x: torch.where(x > 3, x - 2, x + 5),
    "clamp": lambda x: (x + 2).clamp(1, 9),
}


class Chain(nn.Module):
    """A function of itself, so many times."""

    def __init__(self, function: Function, steps: int) -> None:
        super().__init__()
        self.function, self.steps = function, steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last result."""
        for _ in range(self.steps):
            x = self.function(x)
        return x


def check(chain: Chain, x: torch.Tensor) -> None:
    """It compiles for the CPU in :data:`SECONDS`, and is as near to float64 as PyTorch is, or to a few roundings."""
    start = time.process_time()
    run = execution.executable(import_torch(chain, (x,)))
    assert time.process_time() - start < SECONDS
    (found,), expected = run(x), chain(x)
    if not x.is_floating_point():
        assert torch.equal(found, expected)
        return
    exact = chain(x.double())
    allowed = 4 * (expected.double() - exact).abs().max() + chain.steps * torch.finfo(x.dtype).eps * exact.abs().max()
    assert (found.double() - exact).abs().max() <= allowed


@pytest.mark.daily(6)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_eight_steps(name: str, dtype: torch.dtype) -> None:
    """Of every function."""
    check(Chain(FUNCTIONS[name], 8), torch.linspace(-4, 4, 37 * 64).reshape(37, 64).to(dtype))


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    """Selections and limits of integers."""
    check(Chain(WHOLE[name], 16), torch.arange(-1000, 1368).reshape(37, 64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_hundred_operators(dtype: torch.dtype) -> None:
    """One after the other."""
    check(Chain(lambda x: x * 0.99 + 0.01, 100), torch.randn(37, 64).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.daily(2)
def test_forty_diamonds(dtype: torch.dtype) -> None:
    """Each step uses what is before it three times."""
    check(Chain(lambda x: (x * x.sigmoid() + x) * 0.5, 40), torch.randn(37, 64).to(dtype))


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("elu", torch.float32),
        ("mish", torch.float32),
        ("where_of_two", torch.float16),
        ("gelu", torch.bfloat16),
        ("logsigmoid", torch.float16),
    ],
)
@pytest.mark.daily(2)
def test_compiles_for_a_gpu(name: str, dtype: torch.dtype) -> None:
    """Also functions of 16 bits, of which nvcc merges nothing that stands there several times."""
    x = torch.randn(37, 64).to(dtype)
    start = time.process_time()
    tkc.compile(Chain(FUNCTIONS[name], 8), (x,), target="cuda:sm_90a", kernels="none")
    assert time.process_time() - start < SECONDS
