"""Normalization in evaluation and in training, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tkc
from tests.frontend.side_by_side import Function, compare

scale, shift = torch.linspace(0.5, 2, 6), torch.linspace(-1, 1, 6)
mean, variance = torch.linspace(-0.5, 0.5, 6), torch.linspace(0.3, 3, 6)

FUNCTIONS: dict[str, Function] = {
    "group": lambda x: F.group_norm(x, 3, scale.to(x.dtype), shift.to(x.dtype)),
    "group_plain": lambda x: F.group_norm(x, 2, eps=0.5),
    "native_group": lambda x: torch.native_group_norm(
        x, scale.to(x.dtype), None, x.shape[0], 6, x.shape[2] * x.shape[3], 2, 1e-3
    ),
    "instance": lambda x: F.instance_norm(x, weight=scale.to(x.dtype), bias=shift.to(x.dtype)),
    "batch": lambda x: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), scale.to(x.dtype), shift.to(x.dtype)),
    "batch_plain": lambda x: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), eps=0.1),
    "batch_in_training": lambda x: F.batch_norm(x, None, None, scale.to(x.dtype), training=True),
    "layer": lambda x: F.layer_norm(x, (5,), scale[:5].to(x.dtype), shift[:5].to(x.dtype)),
    "layer_axes": lambda x: F.layer_norm(x, (6, 4, 5)),
    "native_layer": lambda x: torch.native_layer_norm(x, (4, 5), None, None, 1e-3),
    "rms": lambda x: F.rms_norm(x, (5,), scale[:5].to(x.dtype), 1e-3),
    "rms_plain": lambda x: F.rms_norm(x, (4, 5)),
    "response": lambda x: F.local_response_norm(x, 3, alpha=0.5, beta=0.7, k=1.5),
    "glu": lambda x: F.glu(x, 1),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_layer(dtype: torch.dtype) -> None:
    """A batch known at the call; numbers far from zero."""
    calls = [((torch.randn(batch, 6, 4, 5) * 2 + 5).to(dtype),) for batch in (2, 3)]
    # PyTorch has no average of three axes in 16 bits on the CPU.
    functions = {name: call for name, call in FUNCTIONS.items() if name != "response" or dtype == torch.float32}
    compare(functions, *calls, tolerance=1e-5, dynamic_shapes=[{0: Dim("batch", min=2, max=8)}])


@pytest.mark.daily(1)
def test_nan_and_empty_batches() -> None:
    """NaN stays in its own row, group or channel; no image gives none."""
    x = torch.randn(2, 6, 4, 5)
    x[1, 2, 3, 4] = float("nan")
    compare(FUNCTIONS, (x,), tolerance=1e-5)
    whole = {name: call for name, call in FUNCTIONS.items() if name not in ("instance", "batch_in_training")}
    compare(whole, (x[:0],))


class Normalized(nn.Module):
    """Two layers with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(3, momentum=0.3), nn.BatchNorm2d(3, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One behind the other."""
        return self.second(self.first(x) ** 2)


def test_running_statistics_are_updated() -> None:
    """In training, as the module's own are; the variance without bias."""
    torch.manual_seed(0)
    model = Normalized().train()
    executable = tkc.compile(model, (torch.randn(2, 3, 4, 5),), copy_weights=True)
    for _ in range(3):
        x = torch.randn(2, 3, 4, 5) * 3 + 1
        torch.testing.assert_close(executable(x), model(x))
    state = {name: tensor for name, tensor in model.state_dict().items() if name in executable.state}
    assert len(state) == 6
    torch.testing.assert_close(dict(executable.state), state)
