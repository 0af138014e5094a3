"""Tensors without elements, in whole models: what is computed from them is what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tkc

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: torch.relu(x[:, :0]) * 2,
    "softmax": lambda x: torch.softmax(x[:, :0], -1),
    "joined with something": lambda x: torch.cat([x[:, :0], x + 1], 1),
    "joined with something else": lambda x: torch.cat([x[:, :0], x + 1, x[:, 7:], 2 * x], 1),
    "sum": lambda x: x[:, :0].sum(1),
    "sum of everything": lambda x: x[:, :0].sum(),
    "sum that is empty": lambda x: x[:, :0].sum(0),
    "product": lambda x: x[:, :0].prod(1),
    "mean": lambda x: x[:, :0].mean(1),
    "matrix product": lambda x: x[:, :0] @ x[:0],
    "bias of a product": lambda x: torch.addmm(x, x[:, :0], x[:0]),
    "reshaped": lambda x: x[:, :0].reshape(0, 3).transpose(0, 1) + 1,
    "a constant": lambda x: x[:, :0] + torch.zeros(5, 0),
}


class Model(torch.nn.Module):
    """One of the forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        """What the form makes of ``x``."""
        return FORMS[self.form](x)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kernels", ["none", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_pytorch(form: str, kernels: str, tmp_path: Path) -> None:
    """With and without kernels, and after it was saved and loaded."""
    x, model = torch.randn(5, 7), Model(form)
    executable = tkc.compile(model, (x,), target="cpu", kernels=kernels)
    executable.save(tmp_path / "model.tkc")
    for run in (executable, tkc.load(tmp_path / "model.tkc")):
        torch.testing.assert_close(run(x), model(x), equal_nan=True)


@pytest.mark.nvcc
def test_compiles_for_cuda() -> None:
    """Nothing of it is left to launch."""
    tkc.compile(Model("elementwise"), (torch.randn(5, 7),), target="cuda:sm_90a")
