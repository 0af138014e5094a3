"""What models write into tensors that they hold keeps its shape and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tkc


class Written(nn.Module):
    """A buffer, all of which one statement writes, and what is read of it afterwards."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], None], dtype: torch.dtype) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("buffer", torch.zeros(3, 4, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is read."""
        self.write(self.buffer, x)
        return self.buffer * 2


def _assign(target: torch.Tensor, value: Any) -> None:
    target[:] = value


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a number": lambda b, x: _assign(b, 1),
    "a fraction": lambda b, x: _assign(b, 2.5),
    "fill_ a number": lambda b, x: b.fill_(3),
    "fill_ a tensor": lambda b, x: b.fill_(x[0]),
    "fill_ of another dtype": lambda b, x: b.fill_(torch.tensor(2.75, dtype=torch.float64)),
    "fill_ of rows": lambda b, x: b[1:].fill_(x[1]),
    "a row for all": lambda b, x: _assign(b, x),
    "copy_ that broadcasts": lambda b, x: b.copy_(x),
    "zero_": lambda b, x: b.zero_(),
    "clamp_": lambda b, x: b.add_(1).clamp_(max=0.5),
    "add_": lambda b, x: b.add_(x.to(b.dtype)),
    "masked_fill_": lambda b, x: b.masked_fill_(x > 1, 2),
    "index_fill_": lambda b, x: b.index_fill_(0, torch.tensor([1]), 2),
    "a column": lambda b, x: _assign(b[:, 1:2], 5),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_written_buffers_keep_shape_and_dtype(name: str, dtype: torch.dtype) -> None:
    """PyTorch's functional form of ``fill_`` and ``copy_`` has the shape and dtype of what is written."""
    if name == "clamp_" and dtype == torch.int32:
        pytest.skip("PyTorch clamps whole numbers by whole numbers only")
    x = torch.tensor([1.25, 2.25, 0.5, 4.0])
    model = Written(WRITES[name], dtype)
    executable = tkc.compile(torch.export.export(Written(WRITES[name], dtype), (x,)), kernels="none", database=False)
    expected = model(x)
    assert torch.equal(executable(x), expected)
    assert torch.equal(executable.state["buffer"], model.buffer)
