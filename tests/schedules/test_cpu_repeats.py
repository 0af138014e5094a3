"""Rows that are repeated, read by remainders of places, of each dtype and on any number of cores."""

from __future__ import annotations

import os

import pytest
import torch

import tkc

WIDTHS = (2, 3, 4, 5, 8, 16)
TIMES = (3, 6, 7, 8, 9, 11, 12, 13, 19, 35)


class _Repeats(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Every tensor's rows, each as often, through an ``exp`` or, of integers, a quadratic."""
        repeated = [x.repeat(2, times) for x in tensors for times in TIMES]
        return [torch.exp(x) if x.is_floating_point() else x * x + 3 * x for x in repeated]


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("cores", [2, 16])
def test_repeated_rows(cores: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's vectorizer read rows of four numbers on, beyond their end, where their length was a multiple of four."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    tensors = [torch.randint(-3, 4, (5, width)).to(dtype) for width in WIDTHS]
    found = tkc.compile(_Repeats(), tuple(tensors), target="cpu", database=False)(*tensors)
    torch.testing.assert_close(list(found), _Repeats()(*tensors))
