"""Functions of numbers that a model makes of nothing have PyTorch's bits, whatever they are multiplied by after."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import tkc
from tests.schedules.graphs import Applied

FREQUENCIES: dict[str, Callable[[], Tensor]] = {
    "exponential": lambda: torch.exp(-math.log(10_000) * torch.arange(128, dtype=torch.float32) / 128),
    "power": lambda: 1.0 / 10_000 ** (torch.arange(0, 128, 2).float() / 128),
    "power of floats": lambda: torch.arange(1, 100, dtype=torch.float32) ** -0.37,
    "evenly between": lambda: torch.linspace(0.1, 9, 77).exp2(),
    "logarithm": lambda: (torch.ones(3, 40).cumsum(-1) + torch.full((3, 1), 0.3)).log(),
    "in float64": lambda: torch.arange(50, dtype=torch.float64).div(7).tanh(),
    "two of them": lambda: torch.outer(torch.arange(9).float(), torch.arange(30).float().mul(0.1).exp()).sin(),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_bits_are_pytorchs(name: str) -> None:
    """Alone, and times what a call gives."""

    def function(t: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = FREQUENCIES[name]()
        return frequencies, t[:, None] * frequencies.flatten()

    t = torch.tensor([44.0, 239_000.0])
    executable = tkc.compile(Applied(function), (t,), database=False, dynamic_shapes={"args": ({0: Dim("n")},)})
    for given in (t, t[:1]):
        torch.testing.assert_close(executable(given), function(given), rtol=0, atol=0)


def test_the_embedding_of_time_steps() -> None:
    """Of thousands: a bit of a frequency would be a hundredth of the sine."""

    def function(t: Tensor) -> Tensor:
        angles = 1000 * t[:, None].float() * FREQUENCIES["exponential"]()
        return torch.cat([angles.sin(), angles.cos()], -1)

    t = torch.tensor([44, 239, 999])
    executable = tkc.compile(Applied(function), (t,), database=False)
    torch.testing.assert_close(executable(t), function(t), rtol=0, atol=2e-6)


def test_a_program_that_is_compiled_within_autocast() -> None:
    """It is what it was exported as."""
    scale, t = torch.full((4, 4), 0.1234567), torch.ones(1)

    def function(t: Tensor) -> Tensor:
        return t * (torch.eye(4) @ torch.full((4, 4), 0.1234567)).double().exp()

    program = torch.export.export(Applied(function), (t,))
    with torch.autocast("cpu", torch.bfloat16):
        executable = tkc.compile(program, database=False)
    torch.testing.assert_close(executable(t), scale.double().exp())


def test_no_elements_and_no_axes() -> None:
    """Of which there is little to know."""

    def function(t: Tensor) -> tuple[Tensor, Tensor]:
        return t + torch.full((), 2.5).exp(), torch.arange(0, dtype=torch.float32).exp()

    executable = tkc.compile(Applied(function), (torch.ones(2),), database=False)
    torch.testing.assert_close(executable(torch.ones(2)), function(torch.ones(2)), rtol=0, atol=0)


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.rates.exp() + torch.rand(5).exp() * 0 + x.exp() + torch.arange(5).float().exp()


def test_weights_inputs_and_random_numbers_are_not_known() -> None:
    """A call reads them."""
    model, x = _Weighted(), torch.randn(5)
    executable = tkc.compile(model, (x,), database=False, fallback=True)
    torch.testing.assert_close(executable(x), model(x))
    with torch.no_grad():
        model.rates += 1
    torch.testing.assert_close(executable(x), model(x))
