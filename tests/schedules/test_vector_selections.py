"""Selections behind matmuls that no kernel computes: conditions of rows, of columns, and of each element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tkc
from tests.frontend.execution import relative_error

CONDITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of rows": lambda mask, z: mask[..., :1],
    "not of rows": lambda mask, z: ~(mask[..., :1].to(torch.int8) > 0),
    "of elements": lambda mask, z: mask,
    "of rows and elements": lambda mask, z: mask[..., :1] & (z > 0),
    "of two columns": lambda mask, z: mask[..., :1] & ~mask[..., 1:2],
    "of columns": lambda mask, z: mask[:, :1],
    "of all": lambda mask, z: mask.any(),
    "of numbers": lambda mask, z: (z * 3).to(torch.int32).bool(),
    "of NaN": lambda mask, z: z.isnan() | mask[..., 2:3],
}


class Selecting(nn.Module):
    """What a linear layer computes, by such a condition."""

    def __init__(self, condition: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
        self.condition = condition

    def forward(self, hidden: Tensor, mask: Tensor, z: Tensor) -> Tensor:
        """The layer's result is read once, so that the selection is fused to it."""
        return self.linear(hidden) + torch.where(self.condition(mask, z), z, 3.0)


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 84, 64), torch.rand(2, 84, 10) > 0.5, torch.randn(2, 84, 10)


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("name", CONDITIONS)
def test_compile_for_a_gpu(name: str) -> None:
    """TVM's own code for them is no C++."""
    dtype = torch.bfloat16 if len(name) % 2 else torch.float32
    hidden, mask, z = _inputs()
    model = Selecting(CONDITIONS[name]).to(dtype)
    tkc.compile(model, (hidden.to(dtype), mask, z.to(dtype)), target="cuda:sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONDITIONS)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """Each element is selected by its own condition."""
    inputs = tuple(x.cuda().to(dtype if x.is_floating_point() else None) for x in _inputs())
    model = Selecting(CONDITIONS[name]).cuda().to(dtype)
    executable = tkc.compile(model, inputs, target="cuda")
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert relative_error(executable(*inputs), model(*inputs)) < tolerance
