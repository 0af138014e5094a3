"""Differences of unsigned numbers that TVM would compute when compiling: 0 - 1 ends its process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tkc
from tests.schedules.graphs import Model

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "of zeros": lambda x: torch.zeros(3, dtype=x.dtype) - 1 + x,
    "of constants": lambda x: torch.ones(3, dtype=x.dtype) - torch.full((3,), 2, dtype=x.dtype) + x,
    "of itself": lambda x: x - x - 1,
    "of two such": lambda x: (x - x) - (x - x + 1),
    "from a number": lambda x: 3 - x,
    "negated": lambda x: -(x - x + 1),
    "summed": lambda x: (x - x - 1).sum(),
    "compared": lambda x: x - x - 1 > x,
    "divided": lambda x: (x - x - 1) // 2,
    "of rows and columns": lambda x: x[:, None] - x[None, :],
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CASES)
def test_results_are_pytorchs(name: str) -> None:
    """They wrap around."""
    x = torch.tensor([0, 3, 255], dtype=torch.uint8)
    found, expected = tkc.compile(Model(CASES[name]), (x,))(x), CASES[name](x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("name", ["of zeros", "of two such"])
def test_they_compile_for_a_gpu(name: str) -> None:
    """Schedules for it inline more, and may not end the process."""
    tkc.compile(Model(CASES[name]), (torch.tensor([0, 3, 255], dtype=torch.uint8),), target="cuda:sm_90a")
