"""Calls with tensors of no elements: an empty batch, no tokens, rows of nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tkc


class _Rows(nn.Module):
    """Functions of ``x [n, 64]``, each row by itself, and sums over all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = self.linear.weight
        return (
            x + 1,
            torch.relu(x),
            F.hardtanh(x),
            F.pad(x, (1, 2)),
            torch.softmax(x, 1),
            F.layer_norm(x, (64,)),
            x.T.contiguous(),
            x.amax(1),
            x.argmax(1),
            x.cumsum(1),
            x.sort(1).values,
            x.topk(3, 1).values,
            x @ weight.T,
            F.silu(self.linear(x)),
            F.embedding(ids, weight),
            torch.cat([x, x], 0),
            weight.index_select(0, ids),
            F.scaled_dot_product_attention(x[:, None, None], x[:, None, None], x[:, None, None]),
            x.sum(0),
            x.prod(0),
            x.T @ x,
            x.cumsum(0),
        )


class _Images(nn.Module):
    """Functions of ``x [n, 8, 6, 5]``."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            self.convolution(x),
            self.depthwise(x),
            F.max_pool2d(x, 2),
            F.avg_pool2d(x, 2),
            F.adaptive_avg_pool2d(x, 1),
            F.interpolate(x, scale_factor=2),
            F.group_norm(x, 4),
        )


def _check(model: nn.Module, kernels: str, *calls: tuple[torch.Tensor, ...], dtype: torch.dtype) -> None:
    model = model.to(dtype).eval()
    example = calls[-1]
    n = Dim("n", min=0, max=4096)
    target = "cuda" if torch.cuda.is_available() else "cpu"
    exe = tkc.compile(
        model.to(target), example, target=target, kernels=kernels, dynamic_shapes=tuple({0: n} for _ in example)
    )
    for inputs in (*calls, calls[0]):  # CUDA graphs are recorded by the second call of any sizes
        for found, expected in zip(exe(*inputs), model(*inputs), strict=True):
            # Sums in another order differ by some roundings of the largest element.
            largest = expected.abs().max().item() if expected.numel() else 0
            torch.testing.assert_close(found, expected, atol=8 * torch.finfo(dtype).eps * largest, rtol=0)
    if target == "cuda":
        torch.cuda.synchronize()


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.daily(1)
@pytest.mark.parametrize("kernels", ["none", "all"])
def test_no_rows(kernels: str) -> None:
    """A batch that is empty at run time gives empty results, and sums of nothing; other sizes are served as well."""
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    calls = [
        (torch.randn(n, 64, device=_device(), dtype=dtype), torch.arange(n, device=_device()) % 32)
        for n in (0, 0, 1, 5)
    ]
    _check(_Rows(), kernels, *calls, dtype=dtype)


def test_no_images() -> None:
    """An empty batch of images, through convolutions, pooling and normalization."""
    calls = [(torch.randn(n, 8, 6, 5, device=_device()),) for n in (0, 0, 3)]
    _check(_Images(), "auto", *calls, dtype=torch.float32)


def test_sizes_that_are_known_to_be_zero() -> None:
    """Sizes of 0 that are known when compiling."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x + 1,
                torch.relu(x),
                F.hardtanh(y),
                F.pad(x, (1, 1, 1, 1)),
                x @ x.T,
                x.T @ x,
                y.mean((0, 2)),
                y.sum(),
            )

    inputs = torch.zeros(0, 4, device=_device()), torch.zeros(1, 0, 3, device=_device())
    exe = tkc.compile(Model(), inputs, target=_device())
    for _ in range(3):
        for found, expected in zip(exe(*inputs), Model()(*inputs), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)
