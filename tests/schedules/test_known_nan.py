"""NaN that the compiler knows of: a constant, the mean of no elements, a difference of infinities."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tkc

SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: torch.full_like(x, math.nan),
    "mean of no elements": lambda x: x[:, :, None][:, :, :0].mean(-1),
    "difference of infinities": lambda x: torch.full_like(x, math.inf) - torch.full_like(x, math.inf),
    "infinity times zero": lambda x: torch.full_like(x, math.inf) * torch.zeros_like(x),
    "sum of infinities": lambda x: torch.full_like(x, math.inf) + torch.full_like(x, -math.inf),
    "part of a concatenation": lambda x: torch.cat([torch.full_like(x, math.nan), x], 1),
    "what a mask fills": lambda x: x.masked_fill(x > -1, math.nan),
}
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "minimum": lambda v: torch.minimum(torch.ones_like(v), v),
    "minimum of another order": lambda v: torch.minimum(v, torch.ones_like(v)),
    "maximum": lambda v: torch.maximum(torch.zeros_like(v), v),
    "relu": F.relu,
    "clamp": lambda v: v.clamp(-1, 1),
    "hardsigmoid": F.hardsigmoid,
    "amin": lambda v: v.amin(-1),
    "amin of one column": lambda v: v[:, :1].amin(-1),
    "amin of rows": lambda v: v.amin(0),
    "amax": lambda v: v.amax(-1),
    "max pooling": lambda v: F.max_pool1d(v[None], 2),
    "argmin": lambda v: v.argmin(-1),
    "cummax": lambda v: v.cummax(-1)[0],
    "sort": lambda v: v.sort(-1)[0],
    "difference": lambda v: v - v,
    "product with zero": lambda v: v * 0,
    "equality": lambda v: v == v,
    "quotient": lambda v: v / v,
    "truth": lambda v: v.bool(),
    "any": lambda v: v.logical_not().any(-1),
    "threshold": lambda v: F.threshold(v, 0.0, 1.0),
    "comparison": lambda v: ~(v >= 0),
    "softmax": lambda v: v.softmax(-1),
    "largest magnitude": lambda v: torch.linalg.vector_norm(v, math.inf, -1),
}


class _Read(nn.Module):
    """What ``readers`` make of what ``source`` does of an input."""

    def __init__(self, source: str, readers: tuple[str, ...]) -> None:
        super().__init__()
        self.source, self.readers = source, readers

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        value = SOURCES[self.source](x)
        return tuple(READERS[reader](value) for reader in self.readers)


def _check(model: _Read, device: str, dtype: torch.dtype) -> None:
    x = torch.arange(12, device=device).reshape(3, 4).to(dtype) / 4
    found = tkc.compile(model, (x,), target=device)(x)
    for reader, ours, theirs in zip(model.readers, found, model(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text, reader=reader: f"{reader}: {text}")


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.daily(24)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("source", SOURCES)
def test_reader_sees_it(source: str, reader: str, dtype: torch.dtype) -> None:
    """As PyTorch has it, where source and reader become one function."""
    _check(_Read(source, (reader,)), "cpu", dtype)


@pytest.mark.daily(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_readers_see_it(source: str, dtype: torch.dtype) -> None:
    """The same of what several read, which is in memory."""
    _check(_Read(source, tuple(READERS)), "cpu", dtype)


@pytest.mark.gpu
@pytest.mark.daily(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_readers_see_it_on_a_gpu(source: str, dtype: torch.dtype) -> None:
    """The same on a GPU."""
    _check(_Read(source, tuple(READERS)), "cuda", dtype)


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles_for_a_gpu(source: str, dtype: torch.dtype) -> None:
    """Guards around NaN are code that CUDA knows."""
    x = torch.zeros(3, 4, dtype=dtype)
    tkc.compile(_Read(source, tuple(READERS)), (x,), target="cuda:sm_90a")


@pytest.mark.parametrize("reduced", [torch.amin, torch.amax])
def test_extremum_of_a_mean_of_no_rows(reduced: Callable[..., Tensor]) -> None:
    """The mean of no rows is NaN, and so is the extremum of it (the fuzzer's seed 501, graph 74, by torch.compile)."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return reduced(x.mean(0, keepdim=True), 0)

    x = torch.ones(0, 5, 4, dtype=torch.float64)
    assert tkc.compile(Model(), (x,))(x).isnan().all()
