"""Repeated rows through functions with intermediate values, at odd widths, on any number of cores."""

from __future__ import annotations

import os

import pytest
import torch

import tkc

WIDTHS = (2, 3, 4, 5, 8)
TIMES = (3, 6)


class _Repeats(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Every tensor's rows, each as often."""
        return [torch.exp(x.repeat(2, times)) for x in tensors for times in TIMES]


@pytest.mark.parametrize("cores", [2, 16])
def test_repeated_rows(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule divides rows among cores; the a row shorter than a core's part once read other places."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    tensors = [torch.randn(5, width) for width in WIDTHS]
    found = tkc.compile(_Repeats(), tuple(tensors), target="cpu", database=False)(*tensors)
    torch.testing.assert_close(list(found), _Repeats()(*tensors))
