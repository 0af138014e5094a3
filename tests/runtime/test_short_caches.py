"""Caches that are too short for what is written into them: refused on the CPU, as in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tkc.dynamo.backend import tkc as backend

LENGTH = 6


class Cache(nn.Module):
    """Writes rows behind those that are there, as transformers' static cache does."""

    rows: torch.Tensor
    length: torch.Tensor

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(LENGTH, 4, dtype=dtype))
        self.register_buffer("length", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after ``x [n, 4]`` was added."""
        places = torch.arange(x.shape[0]) + self.length
        self.length.add_(x.shape[0])
        self.rows.index_copy_(0, places, x)
        return self.rows * 2


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_full_cache_takes_no_more(dtype: torch.dtype) -> None:
    """Up to its last row it does; what comes behind was written into that one. ``reset`` makes room."""
    example = torch.ones(2, 4, dtype=dtype)
    shapes = ({0: Dim("n", min=1, max=64)},)
    compiled = tkc.compile(Cache(dtype), (example,), dynamic_shapes=shapes, kernels="none", database=False)
    for counts, refused in (((4, 2), 1), ((5,), 2), ((), 7), ((1,) * 6, 1), ((6,), 64)):
        compiled.reset()
        reference = Cache(dtype)
        for count in counts:
            x = torch.randn(count, 4).to(dtype)
            torch.testing.assert_close(compiled(x), reference(x))
        x = torch.ones(refused, 4, dtype=dtype)
        with pytest.raises(IndexError):
            reference(x)
        with pytest.raises(tkc.InputError, match=r"indices are out of range, .* by aten\.index_copy\.default"):
            compiled(x)


def test_a_full_cache_under_torch_compile() -> None:
    """Whose buffers are inputs of the graph."""
    torch._dynamo.reset()
    model = Cache()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(2, 4))
        with pytest.raises(tkc.InputError, match=r"out of range, .* by aten\.index_copy\.default"):
            compiled(torch.ones(2, 4))
    torch._dynamo.reset()
