"""What reads a convolution of PyTorch's, whose channels stand last: the same numbers in the same shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tkc

READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean of all": lambda x: x.mean(),
    "sum of all": lambda x: x.sum(),
    "mean of pixels, then of channels": lambda x: x.flatten(2).mean(-1).mean(),
    "mean of pixels, then of all": lambda x: x.mean((2, 3)).mean(),
    "sum of pixels, then of all": lambda x: x.sum((2, 3)).sum(),
    "mean of pixels, then of batches": lambda x: x.mean((2, 3)).mean(0),
    "mean of pixels, then of channels, kept": lambda x: x.mean((2, 3)).mean(1, keepdim=True),
    "mean of pixels, kept, then of all": lambda x: x.mean((2, 3), keepdim=True).mean(),
    "mean of pixels, kept, then scaled": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "mean of rows": lambda x: x.mean(2),
    "mean of columns, kept": lambda x: x.mean(-1, keepdim=True),
    "sum of channels": lambda x: x.sum(1),
    "sum of channels and rows": lambda x: x.sum((1, -2)),
    "mean of batches": lambda x: x.mean(0),
    "sum of flattened pixels, then of all": lambda x: x.flatten(2).sum(2).sum(),
    "mean of flattened channels": lambda x: x.flatten(2).mean(1),
    "maximum of pixels": lambda x: x.amax((2, 3)),
    "maximum of all": lambda x: x.max(),
    "variance": lambda x: x.var((2, 3)).mean(),
    "norm of channels": lambda x: nn.functional.normalize(x, dim=1),
    "softmax of channels": lambda x: x.softmax(1),
    "softmax of pixels": lambda x: x.flatten(2).softmax(-1).sum(),
    "argmax of channels": lambda x: x.argmax(1),
    "pooled, then mean": lambda x: nn.functional.max_pool2d(x, 3, 2).mean((2, 3)).sum(),
    "pooled to one, flattened": lambda x: nn.functional.adaptive_avg_pool2d(x, 1).flatten(1).sum(),
    "biased by a vector of columns": lambda x: x + torch.linspace(0, 1, x.shape[3]),
    "biased by channels": lambda x: (x + torch.linspace(0, 1, x.shape[1])[:, None, None]).mean((2, 3)),
    "broadcast to five axes": lambda x: (x + torch.zeros(3, 1, 1, 1, 1)).mean((2, 3)),
    "means added": lambda x: x.mean((2, 3)) + x.flatten(2).sum(-1) * torch.linspace(0, 1, x.shape[1]),
    "means by batches": lambda x: x.mean((2, 3)) / torch.linspace(1, 2, x.shape[0])[:, None],
    "flattened to pixels and back": lambda x: x.flatten(2).relu().reshape(x.shape).mean((0, 2)),
    "a row of all": lambda x: x.flatten().mean(0, keepdim=True),
}


LAYERS = {
    "a product": nn.Conv2d(8, 8, 3),
    "the library's": nn.Conv2d(8, 8, 3, groups=2),
}


@pytest.mark.daily(8)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_convolution(layer: str, name: str, batch: int) -> None:
    """Reductions of all axes, of some, and of what is left of an image: each as PyTorch computes it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = LAYERS[layer]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return READERS[name](self.convolution(x))

    x = torch.randn(batch, 8, 50, 48, generator=torch.Generator().manual_seed(batch))
    model = Model().eval()
    executable = tkc.compile(model, (x,), target="cpu", database=False)
    assert sum(use.calls for use in executable.report.library_calls) == (layer == "the library's")
    with torch.no_grad():
        torch.testing.assert_close(executable(x), model(x), rtol=1e-4, atol=1e-4)
