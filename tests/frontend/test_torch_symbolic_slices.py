"""Slices whose bounds are symbolic: counted from the front or from the end, read and written."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tkc


def _written(x: torch.Tensor, place: object) -> torch.Tensor:
    copied = x * 1
    copied[:, place] = 7.0  # type: ignore[index]  # a slice or a number
    return copied


class Slices(nn.Module):
    """By the length ``n`` of ``y``, of ``x [2, size]``, where ``4 < n < size``."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What is at ``-n``, which is below zero, at ``n - 4``, which is not, and between."""
        n = y.shape[0]
        return (
            x[:, -n:] * 2,
            x[:, n - 4 :] * 2,
            x[:, -n] * 2,
            x[:, n - 4] * 2,
            x[:, -n::2] * 2,
            _written(x, slice(-n, None)),
        )


@pytest.fixture(scope="module")
def compiled() -> tkc.Executable:
    """For all sizes."""
    shapes = {1: Dim.AUTO}, {0: Dim.AUTO}
    example = torch.randn(2, 9), torch.randn(6)
    return tkc.compile(Slices(), example, dynamic_shapes=shapes, kernels="none", database=False)


@pytest.mark.parametrize(("size", "n"), [(9, 6), (9, 5), (6, 5), (40, 7), (40, 39)])
def test_symbolic_slices(compiled: tkc.Executable, size: int, n: int) -> None:
    """Symbolic starts below zero were taken as they are, and read memory before the tensor."""
    x, y = torch.randn(2, size), torch.randn(n)
    for found, expected in zip(compiled(x, y), Slices()(x, y), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.daily(2)
def test_a_start_of_either_sign() -> None:
    """A number that torch.compile made symbolic counts from the front or from the end, in one compilation each."""
    from tkc.dynamo.backend import tkc as backend

    torch._dynamo.reset()
    function = torch.compile(lambda x, n: x[:, n:] + 1, backend=backend, dynamic=True)
    for size, n in ((9, -3), (7, -5), (5, -5), (9, 4), (7, 3), (6, 6), (4, 0), (4, -1)):
        x = torch.randn(2, size)
        assert torch.equal(function(x, n), x[:, n:] + 1)
    torch._dynamo.reset()


class WrittenThenActivated(nn.Module):
    """Writes into a slice of ``x [n, 1]`` that begins at a quotient of ``n``; then computes of ``y [n, 1]`` alone."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A CELU, one of whose functions is TKC's own, and so has sizes of its own."""
        x[1 + x.shape[0] // 4 :].add_(1.0)
        return F.celu(y, alpha=1.5)


def test_a_slice_that_is_written_leaves_other_sizes() -> None:
    """What was written has ``n`` rows, which TVM cannot tell: from there on it took the slice's formula for ``n``."""
    sizes = {0: Dim("n", max=600)}
    example = torch.randn(3, 1), torch.randn(3, 1)
    executable = tkc.compile(WrittenThenActivated(), example, dynamic_shapes=(sizes, sizes), database=False)
    for rows in (4, 6, 9):
        x, y = torch.randn(rows, 1), torch.randn(rows, 1)
        own = x.clone()
        torch.testing.assert_close(executable(x, y), WrittenThenActivated()(own, y))
        torch.testing.assert_close(x, own)


class BehindTheEnd(nn.Module):
    """Rows from the third on of the first three, of which there are none; PyTorch calls them ``min(0, n - 3)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What is made of no rows."""
        none = x[3 : min(3, x.shape[0])]
        rows = torch.cat([none, x])
        return self.layer(none), none.sum(0), rows, F.conv1d(none[:, None], torch.ones(2, 1, 2)), none.softmax(-1)


@pytest.mark.daily(2)
def test_a_slice_behind_its_end() -> None:
    """A size that is never above zero is zero."""
    model = BehindTheEnd()
    compiled = tkc.compile(model, (torch.randn(6, 4),), dynamic_shapes=({0: Dim.DYNAMIC},), database=False)
    for size in (3, 5, 9):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), model(x))
