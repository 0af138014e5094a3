"""Python numbers beside 16-bit tensors: PyTorch's kernels take them in float32, and round their result alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.frontend import execution
from tests.frontend.side_by_side import Function, Several
from tkc.frontend.torch.importer import import_torch

NUMBERS = (0.3, -1.7, 3.14159, 257)
"""None of them is a bfloat16."""


def _with(function: Callable[..., torch.Tensor], number: Any) -> Function:
    return lambda x, y: function(x, number)


def _from(function: Callable[..., torch.Tensor], number: float) -> Function:
    return lambda x, y: function(number, x)


def _functions(number: float) -> dict[str, Function]:
    functions: dict[str, Function] = {
        **{
            name: _with(getattr(operator, name), number) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")
        },
        **{f"{name} of a number": _from(getattr(operator, name), number) for name in ("add", "sub", "mul")},
        **{
            f"{name} of a scalar tensor": _with(getattr(operator, name), torch.tensor(number))
            for name in ("add", "sub", "mul", "truediv")
        },
        **{name: _with(getattr(torch, name), number) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        "truncated": lambda x, y: torch.div(x, number, rounding_mode="trunc"),
        "fmod": lambda x, y: torch.fmod(x, number),
        "power": lambda x, y: x.abs() ** number,
        "power of": lambda x, y: abs(number) ** x.clamp(-2, 2),
        "alpha": lambda x, y: torch.add(x, y, alpha=number),
        "alpha of sub": lambda x, y: torch.sub(x, y, alpha=number),
        "alpha of rsub": lambda x, y: torch.rsub(x, y, alpha=number),
        "clamp": lambda x, y: x.clamp(-abs(number), abs(number)),
        "where": lambda x, y: torch.where(x > 0, x, number),
        "masked_fill": lambda x, y: x.masked_fill(x > 0, number),
        "full": lambda x, y: torch.full_like(x, number),
        "addcmul": lambda x, y: torch.addcmul(x, y, x, value=number),
        "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=number),
        "lerp": lambda x, y: torch.lerp(x, y, number),
        "leaky_relu": lambda x, y: F.leaky_relu(x, number),
        "elu": lambda x, y: F.elu(x, number),
        "threshold": lambda x, y: F.threshold(x, number, 0.77),
        "hardshrink": lambda x, y: F.hardshrink(x, abs(number)),
        "hardtanh": lambda x, y: F.hardtanh(x, -abs(number), abs(number)),
        "softplus": lambda x, y: F.softplus(x, beta=abs(number), threshold=2.2),
    }
    return functions


CONSTANT: dict[str, Function] = {
    "selu": lambda x, y: F.selu(x),
    "silu": lambda x, y: F.silu(x),
    "log2": lambda x, y: x.abs().log2(),
    "log10": lambda x, y: x.abs().log10(),
    "rsqrt": lambda x, y: x.abs().rsqrt(),
    "relu6": lambda x, y: F.relu6(x),
    "hardswish": lambda x, y: F.hardswish(x),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_not_rounded_before_the_result(number: float, dtype: torch.dtype) -> None:
    """Each bit as PyTorch's kernels for CPUs have it, special values among them."""
    generator = torch.Generator().manual_seed(0)
    x, y = ((torch.randn(40, 64, generator=generator) * 2).to(dtype) for _ in range(2))
    special = torch.tensor([math.nan, math.inf, -math.inf, 0, -0.0, 1e-8, 6e4, -6e4]).to(dtype)
    x[0, :8], y[:, :8] = special, special
    functions = _functions(number) | (CONSTANT if number == NUMBERS[0] else {})
    model = Several(functions)
    found = execution.executable(import_torch(model, (x, y)))(x, y)
    wrong = {}
    for value, (name, expected) in zip(found, model(x, y).items(), strict=True):
        assert value.dtype == expected.dtype, name
        different = (value != expected) & ~((value != value) & (expected != expected))
        if different.any():
            wrong[name] = int(different.sum())
    assert wrong == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_truncation_of_the_rounded_quotient(dtype: torch.dtype) -> None:
    """A quotient just below a whole number is that number in 16 bits, before it is truncated."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(500, generator=generator) * 50).to(dtype), torch.rand(500, generator=generator).to(dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0, 1]).to(dtype)
    x[:25], y[:25] = special.repeat(5), special.repeat_interleave(5)
    whole = torch.randint(-300, 300, (500,), generator=generator)
    functions: dict[str, Function] = {
        "of floats": lambda x, y, whole: torch.div(x, y, rounding_mode="trunc"),
        "of integers": lambda x, y, whole: torch.div(whole, y, rounding_mode="trunc"),
        "of narrow integers": lambda x, y, whole: torch.div(whole.int(), y, rounding_mode="trunc"),
    }
    model = Several(functions)
    found = execution.executable(import_torch(model, (x, y, whole)))(x, y, whole)
    for value, expected in zip(found, model(x, y, whole).values(), strict=True):
        assert torch.equal(value.nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(value.isnan(), expected.isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_softshrink_in_float32(dtype: torch.dtype) -> None:
    """In a model that needs no decomposition; PyTorch's own rounds the bound."""
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = execution.executable(import_torch(Several({"shrunk": lambda x: F.softshrink(x, 0.3)}), (x,)))(x)[0]
    assert torch.equal(found, F.softshrink(x, 0.3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_inverse_of_the_square(dtype: torch.dtype) -> None:
    """To a unit in the last place."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = execution.executable(import_torch(Several({"inverse": lambda x: x**-2}), (x,)))(x)[0]
    torch.testing.assert_close(found.double(), x.double() ** -2, rtol=torch.finfo(dtype).eps, atol=0)
