"""Chains of 16-bit operators that fusion makes one function of: right, whatever is bound to variables in it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.frontend import execution
from tkc.frontend.torch.importer import import_torch

Chain = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Of the linear layer's output h, the input x, and the convolution's output c.
CHAINS: dict[str, Chain] = {
    "layer_norm_gelu_softmax": lambda m, h, x, c: F.gelu(m.layer(h)).softmax(-1),
    "layer_norm_tanh_softmax": lambda m, h, x, c: m.layer(h).tanh().softmax(-1),
    "layer_norm_gelu_tanh_log_softmax": lambda m, h, x, c: F.gelu(m.layer(h), approximate="tanh").log_softmax(-1),
    "rms_norm_silu_softmax": lambda m, h, x, c: F.silu(m.rms(h)).softmax(-1),
    "mish_softmax": lambda m, h, x, c: F.mish(h * 0.5).softmax(0),
    "group_norm_gelu": lambda m, h, x, c: F.gelu(m.group(c)),
    "gelu_group_norm": lambda m, h, x, c: F.group_norm(F.gelu(c), 4),
    "batch_norm_silu_mean": lambda m, h, x, c: F.silu(m.batch(c)).mean((2, 3)),
    "exp_in_float32": lambda m, h, x, c: x.float().exp(),
    "erf_widened_behind": lambda m, h, x, c: torch.erf(h * 0.7).float().sum(-1),
    "sigmoid_variance": lambda m, h, x, c: torch.sigmoid(h * 2).var(-1),
    "exp_largest": lambda m, h, x, c: torch.exp(h * 0.5).amax(-1),
    "logsumexp": lambda m, h, x, c: torch.logsumexp(h * 0.3, -1),
}


class Chained(nn.Module):
    """Every chain, over one linear layer and one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(16, 32), nn.Conv2d(4, 8, 3, padding=1)
        self.layer, self.rms = nn.LayerNorm(32), nn.RMSNorm(32)
        self.group, self.batch = nn.GroupNorm(2, 8), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        """The chains' results, in their order."""
        h, c = self.linear(x), self.conv(image)
        return [chain(self, h, x, c) for chain in CHAINS.values()]


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chains_are_as_exact_as_the_dtype(dtype: torch.dtype) -> None:
    """Some units in the last place of the largest element, from the same in float64."""
    torch.manual_seed(0)
    model = Chained().to(dtype).eval()
    inputs = torch.randn(4, 16).to(dtype), torch.randn(2, 4, 6, 6).to(dtype)
    exact = copy.deepcopy(model).double()(*(tensor.double() for tensor in inputs))
    found = execution.executable(import_torch(model, inputs))(*inputs)
    errors = {
        name: ((value.double() - reference).abs().max() / reference.abs().max()).item()
        for name, value, reference in zip(CHAINS, found, exact, strict=True)
    }
    assert {name: error for name, error in errors.items() if not error < 4 * torch.finfo(dtype).eps} == {}


class Narrowed(nn.Module):
    """What depends on where numbers become bfloat16, and on which bits they have."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """All exact."""
        high = x.bfloat16()
        low = (x - high.float()).bfloat16()
        return [
            *(high, low, x - high.float() - low.float()),
            *(y.argmax(-1), y.argmin(0), (y * 0.5).argmax(-1), y.max(1).indices),
            *(y.float() * 3, y.where(y > 0, 1), y.clamp(-1, 1), (y * 0.5) != y, y.int(), y.double()),
        ]


def test_conversions_to_bfloat16_are_kept() -> None:
    """Numbers as sums of two bfloat16, special values, ties, and positions of the largest."""
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)) * 3
    x[0, :6] = torch.tensor([float("inf"), float("-inf"), float("nan"), 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38])
    x[1, :2] = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)  # NaNs of all bits
    y = torch.randn(5, 9, generator=torch.Generator().manual_seed(1)).bfloat16()
    model = Narrowed()
    found = execution.executable(import_torch(model, (x, y)))(x, y)
    for value, expected in zip(found, model(x, y), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
