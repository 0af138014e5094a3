"""Ranges of numbers, between constants and between tensors."""

from __future__ import annotations

import pytest
import torch

from tests.frontend.exact_checks import check
from tests.frontend.side_by_side import Function


def test_ranges_of_whole_numbers() -> None:
    """Both ends come into the dtype first; what is below zero wraps around where there are no signs."""
    one = torch.ones(1, dtype=torch.uint8)
    dtypes = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
    ends = (4.3, 1, 50), (3, 4.5, 1), (0.5, 0.5, 2), (9, 0.9, 12)
    functions: dict[str, Function] = {}
    for dtype in dtypes:
        for begin, end, steps in ends:
            functions[f"linspace {dtype} {begin} {end} {steps}"] = lambda x, a=begin, b=end, n=steps, dtype=dtype: (
                torch.linspace(a, b, n, dtype=dtype) + x.to(dtype)
            )
        for begin, end, step in (0, 7, 3), (5, -3, -2), (-1, 6, 2), (0.1, -7.9, -4.0), (0.9, 7.9, 2.0):
            if dtype != torch.uint8 or step > 0:
                functions[f"arange {dtype} {begin} {end} {step}"] = lambda x, a=begin, b=end, s=step, dtype=dtype: (
                    torch.arange(a, b, s, dtype=dtype) + x.to(dtype)
                )
    check(functions, one)


@pytest.mark.daily(1)
def test_ranges_between_tensors() -> None:
    """Ends that are tensors come into the result's dtype first, as numbers do."""
    low, high = torch.tensor(3.7), torch.tensor(50.2, dtype=torch.float64)
    functions: dict[str, Function] = {}
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.float64):
        for steps in (1, 2, 7, 50):
            functions[f"tensors {dtype} {steps}"] = lambda a, b, n=steps, d=dtype: torch.linspace(a, b, n, dtype=d)
            functions[f"begin {dtype} {steps}"] = lambda a, b, n=steps, d=dtype: torch.linspace(a, 50, n, dtype=d)
            functions[f"end {dtype} {steps}"] = lambda a, b, n=steps, d=dtype: torch.linspace(-0.7 + 1, b, n, dtype=d)
    check(functions, low, high, tolerance=1e-6)
    exact = {name: function for name, function in functions.items() if "int" in name}
    check(exact, low, high)
    check({name: functions[name] for name in functions if "float64" in name}, low, high, tolerance=1e-15)
