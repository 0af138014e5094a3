"""Numbers that a model reads out of tensors: computed with, compared, asserted; as Python computes with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tests.frontend.whole_models import called, compiled, same

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def _truth(condition: Any) -> Any:
    return torch.sym_float(condition)


def _filled(x: torch.Tensor) -> Any:
    a = x.max().item()
    return torch.full((3,), a), torch.full_like(x, a), x.new_full((2,), a / 2), torch.scalar_tensor(a)


def _compared(x: torch.Tensor) -> Any:
    a = x.max().item()
    return x == a, x < a / 2, x.clamp(max=a / 2), torch.where(x > 0, a, x), x.masked_fill(x > 0, a * 2)


def _called(x: torch.Tensor) -> Any:
    a = x.abs().max().item()
    return torch.nn.functional.leaky_relu(x, a + 1), torch.add(x, x, alpha=a), x.abs() ** a


READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "a float": lambda x: (x * (x.max().item() * 2 + 1), 1 - x.min().item()),
    "a root": lambda x: x * torch.sym_sqrt(x.abs().max().item()) + x.abs().sum().item() ** 0.5,
    "two floats": lambda x: (lambda a, b: ((x + a - b) * (a / b), a * b, a > b))(x.abs().max().item(), x.min().item()),
    "filled": _filled,
    "compared": _compared,
    "called": _called,
    "an integer": lambda x: (lambda a: (x * a, -a, a / 3, a // 3, a % 3, x + a * 2.5))((x.argmax() - 5).item()),
    "rounded": lambda x: (lambda a: (math.floor(a), math.ceil(a), round(a), x + math.floor(a * 10)))(x.max().item()),
    "extremes": lambda x: (lambda a: x * torch.sym_max(a, 3) + torch.sym_min(a, 1))(x.argmax().item()),
    "extremes of floats": lambda x: (lambda a: x * torch.sym_max(a, 0.5) + torch.sym_min(a, 1.5))(x.max().item()),
    "a truth value": lambda x: x * _truth((x > 2).any().item()),
    "not": lambda x: (x * _truth(torch.sym_not((x > 2).any().item())), torch.sym_not((x > 0).all().item())),
    "a choice": lambda x: x * torch.sym_ite(x.argmax().item() > 3, 2, 5),
    "a choice of floats": lambda x: x * torch.sym_ite(x.max().item() > 1.0, 2.5, 5.0),
    "a comparison": lambda x: x + (x.argmax().item() > 2),
    "of one element": lambda x: x[:1, :1].item() * x,
    "of float64": lambda x: x.double()[0, 0].item() * x,
    "beside sizes": lambda x: x * (x.max().item() * x.shape[0] / 7),
    "as a size": lambda x: torch.arange(4) + math.floor(x.abs().max().item() * 3) * x.shape[0],
}


def _all(x: torch.Tensor) -> dict[str, Any]:
    return {name: function(x) for name, function in READ.items()}


@pytest.mark.daily(1)
def test_numbers_are_computed_with_as_python_does() -> None:
    """At several sizes, and with values of either sign."""
    executable = compiled(_all, X, dynamic_shapes=(({0: Dim("rows", min=2, max=100)},),))
    for x in (X, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * 30, -X.abs() - 0.1, X.abs() + 0.1):
        found, expected = executable(x), _all(x)
        for name in READ:
            same(found[name], expected[name])


def test_a_float_costs_no_call() -> None:
    """Where nothing but tensors is computed from it."""
    assert called(compiled(READ["a float"], X)) == {}


def _positive(x: torch.Tensor) -> torch.Tensor:
    a = x.max().item()
    torch._check(a > 0.0)
    return x / a


def _in_range(x: torch.Tensor) -> torch.Tensor:
    low, high = x.min().item(), x.max().item()
    torch._check(high - low < 10.0)
    return (x - low) / (high - low)


def _none_large(x: torch.Tensor) -> torch.Tensor:
    large = (x > 10).any().item()
    torch._check(torch.sym_not(large))
    return x * _truth(large) + x


def _rows(x: torch.Tensor) -> torch.Tensor:
    n = x.argmax().item()
    torch._check(n < x.shape[0])
    return x * n


ASSERTED = {
    "a float": (_positive, -1.0),
    "two floats": (_in_range, 100.0),
    "a truth value": (_none_large, 100.0),
    "an integer": (_rows, torch.tensor([[0.0, 1], [0, 2]])),
}


@pytest.mark.parametrize("name", ASSERTED)
def test_what_is_asserted_of_numbers_is_checked(name: str) -> None:
    """In each call, before anything is computed from them."""
    function, bad = ASSERTED[name]
    x = torch.tensor([[0.5, 1.0], [0.2, 0.1]])
    executable = compiled(function, x, dynamic_shapes=(({0: Dim("rows", min=2, max=100)},),))
    same(executable(x), function(x))
    wrong = bad if isinstance(bad, torch.Tensor) else x * bad
    with pytest.raises(RuntimeError):
        function(wrong)
    with pytest.raises(tkc.InputError, match=r"exported for .*does not hold"):
        executable(wrong)
    same(executable(x), function(x))


class Asserting(torch.nn.Module):
    """Asserts something of numbers that it reads out of a tensor, and does nothing else with them."""

    def __init__(self, check: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.check = check

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``2 * x``."""
        self.check(x)
        return x * 2


ASSERTIONS: dict[str, tuple[Callable[[torch.Tensor], None], torch.Tensor]] = {
    "an integer": (lambda x: torch._check(x[0].item() > 0), torch.tensor([1, 2])),
    "a float": (lambda x: torch._check(x[0].item() > 0), torch.tensor([1.0, 2.0])),
    "a bound": (lambda x: torch._check(x[0].item() >= 0), torch.tensor([1, 2])),
    "a range": (lambda x: (torch._check(x[0].item() >= 2), torch._check(x[0].item() <= 5))[0], torch.tensor([3, 2])),
    "two": (lambda x: torch._check(x[0].item() < x[1].item()), torch.tensor([1, 2])),
}


@pytest.mark.parametrize("name", ASSERTIONS)
def test_what_is_only_asserted_is_checked(name: str) -> None:
    """As PyTorch raises, in each call."""
    check, good = ASSERTIONS[name]
    executable = tkc.compile(Asserting(check), (good,), target="cpu")
    assert torch.equal(executable(good), good * 2)
    with pytest.raises(tkc.Error, match=r"does not hold in this call|exported for at least"):
        executable(good * torch.tensor([-1, -4]))
    assert torch.equal(executable(good), good * 2)
