"""Vectors that CUDA code takes apart, where a loop over them is written out."""

from __future__ import annotations

import copy
from functools import reduce

import pytest
import torch
from torch import Tensor, nn

import tkc
from tests.frontend.execution import relative_error
from tests.schedules.sources import generated_sources
from tests.schedules.stale_vectors import stale_vectors

_IMAGE = 320  # so large that a thread computes several vectors


class Branches(nn.Module):
    """Convolutions of several shapes and the input itself, each normalized, in one sum (as in RepVGG and TextNet)."""

    def __init__(self, shapes: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(64, 64, shape, padding=(shape[0] // 2, shape[1] // 2), bias=False) for shape in shapes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(len(shapes) + 1))

    def forward(self, x: Tensor) -> Tensor:
        """In bfloat16 each sum is rounded, and so written to memory between conversions."""
        *norms, own = self.norms
        branches = [norm(convolution(x)) for norm, convolution in zip(norms, self.convolutions, strict=True)]
        return torch.relu(reduce(torch.add, branches) + own(x))


SHAPES = ((3, 3), (3, 1), (1, 3))


@pytest.mark.daily(1)
def test_vectors_are_read_again_where_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's own code uses what it has once loaded."""
    sources = generated_sources(monkeypatch)
    model = Branches(SHAPES).to(torch.bfloat16).eval()
    x = torch.randn(2, 64, _IMAGE, _IMAGE, dtype=torch.bfloat16)
    tkc.compile(model, (x,), target="cuda:sm_90a")
    assert sources and not [line for source in sources for line in stale_vectors(source)]


@pytest.mark.gpu
def test_sums_of_branches_on_a_gpu() -> None:
    """As PyTorch in float64, within the roundings of bfloat16."""
    model = Branches(SHAPES).cuda().to(torch.bfloat16).eval()
    x = torch.randn(2, 64, _IMAGE, _IMAGE, dtype=torch.bfloat16, device="cuda")
    expected = copy.deepcopy(model).double()(x.double())
    assert relative_error(tkc.compile(model, (x,), target="cuda")(x).double(), expected) < 2e-2
