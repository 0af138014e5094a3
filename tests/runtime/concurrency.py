"""Models that several threads and processes call, what they should return, and the inputs of a call."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import torch
from torch import nn

import tkc

DIMENSION = 32


class Attention(nn.Module):
    """Causal attention of two heads and a GELU: kernels and generated code, of symbolic batch and sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(DIMENSION, 3 * DIMENSION)
        self.outer = nn.Linear(DIMENSION, DIMENSION)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, sequence, DIMENSION]``."""
        q, k, v = (t.view(*t.shape[:2], 2, -1).transpose(1, 2) for t in self.inner(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(x.shape)) + nn.functional.gelu(x)
        return result


class Counter(nn.Module):
    """Counts its calls, and returns the count with each element."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [n]``."""
        self.count += 1
        return x * 0 + self.count


def attention() -> Attention:
    """The model, with the same weights in every process and thread."""
    return _ATTENTION


def _made() -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Attention().eval()


_ATTENTION = _made()  # here, because threads share the generator


def compiled(target: str = "cpu") -> tkc.Executable:
    """:func:`attention` with kernels wherever there are some."""
    batch, sequence = torch.export.Dim("batch", max=8), torch.export.Dim("sequence", min=2, max=64)
    device = "cuda" if target == "cuda" else "cpu"
    return tkc.compile(
        copy.deepcopy(attention()).to(device),
        (torch.randn(2, 5, DIMENSION, device=device),),
        target=target,
        kernels="all",
        dynamic_shapes={"x": {0: batch, 1: sequence}},
    )


def inputs(index: int) -> torch.Tensor:
    """Those of the call number ``index``, whose sizes differ from the next one's."""
    generator = torch.Generator().manual_seed(index)
    return torch.randn(1 + index % 8, 2 + index * 7 % 63, DIMENSION, generator=generator)


def check(executable: tkc.Executable, index: int = 3) -> None:
    """Raise :class:`AssertionError` if a call does not return what the model does."""
    found = executable(inputs(index).to(executable.device)).cpu()
    torch.testing.assert_close(found, _expected(index), atol=1e-4, rtol=1e-4)


@cache
def _expected(index: int) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = attention()(inputs(index))
        return result


for _index in range(16):  # here, because PyTorch's threads fail in threads of a forked child
    _expected(_index)


def loaded(path: str | Path) -> tkc.Executable:
    """An artifact of :func:`compiled`, which has been called once."""
    executable = tkc.load(path)
    check(executable, 0)
    return executable
