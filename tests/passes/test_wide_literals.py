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


def _near_the_ends(dtype: torch.dtype) -> list[int]:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return [least, least + 1, most - 1, most]


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([*_near_the_ends(dtype), -7, -1, 0, 1, 5], dtype=dtype)


class _Extreme(torch.nn.Module):
    """All that is computed with one number as a scalar, and with tensors that are full of it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, full = self.number, torch.full_like(x, self.number)
        compared = [f(x, n) for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)]
        computed = [x + n, x - n, n - x, x * n, x & n, x | n, x ^ n, torch.maximum(x, full), torch.minimum(x, full)]
        chosen = [x.clamp(min=n), x.clamp(max=n), torch.where(x > 1, x, n), x.masked_fill(x > 1, n) + 1, (x + 1) == n]
        scattered = x.scatter_reduce(0, torch.zeros(3, dtype=torch.long, device=x.device), x[:3], "amax")
        divided = [torch.fmod(x, n), torch.remainder(x, n)]
        places = torch.arange(5, dtype=x.dtype, device=x.device)
        positions = [places & n, places % n, torch.where(places > 3, places, n), places < n]
        return *compared, *computed, *chosen, *divided, *positions, -full - x, full.abs() + x, -x < n, scattered


EXTREMES = [(dtype, number) for dtype in (torch.int32, torch.int64) for number in _near_the_ends(dtype)]
EXTREMES += [(torch.int64, number) for number in (2**31, -(2**31) - 1, 2**32 - 1, 2**40 - 1, -(2**62))]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("dtype", "number"), EXTREMES)
def test_numbers_at_the_ends_of_a_dtype(dtype: torch.dtype, number: int) -> None:
    """TVM negates them to simplify, and takes int64's largest for infinity."""
    model, x = _Extreme(number), _numbers(dtype)
    for found, expected in zip(tkc.compile(model, (x,), fallback=False)(x), model(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.nvcc
@pytest.mark.daily(2)
@pytest.mark.parametrize(("dtype", "number"), EXTREMES)
def test_cuda_code_with_numbers_at_the_ends_of_a_dtype(dtype: torch.dtype, number: int) -> None:
    """-2147483648 is a long in C++, and ``max`` of it and an int is ambiguous."""
    tkc.compile(_Extreme(number), (_numbers(dtype),), target="cuda:sm_90a", database=False, fallback=False)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "number"), EXTREMES)
def test_numbers_at_the_ends_of_a_dtype_on_a_gpu(dtype: torch.dtype, number: int) -> None:
    """The same numbers."""
    model, x = _Extreme(number), _numbers(dtype)
    found = tkc.compile(model, (x.cuda(),), target="cuda", database=False, fallback=False)(x.cuda())
    for result, expected in zip(found, model(x), strict=True):
        assert torch.equal(result.cpu(), expected)
