"""Extrema, positions of extrema and constants that are not finite, in the code that is generated for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tkc


class _Extrema(nn.Module):
    """Reductions by one thread, by a block's threads, and over everything; masks of infinity and NaN."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        infinite, nan = (torch.tensor(value, dtype=x.dtype) for value in (float("-inf"), float("nan")))
        return (
            torch.where(mask, x, infinite).softmax(-1),
            torch.where(mask, x, nan),
            torch.relu(x).clamp(max=3),
            *(reduced(x, axis) for axis in (0, 1) for reduced in (torch.amax, torch.argmax, torch.argmin)),
            x.min(),
            x.argmax(),
        )


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_compiles_for_a_gpu(dtype: torch.dtype) -> None:
    """Each of them compiles: CUDA has no number "inff", and reductions are divided among threads only if recognised."""
    inputs = torch.randn(8, 100).to(dtype), torch.rand(8, 100) > 0.5
    report = tkc.compile(_Extrema(), inputs, target="cuda:sm_90a", kernels="none").report
    assert "gpu-rows" in {entry.scheduled_by for entry in report.scheduled}
