"""A small compiled model with nested inputs and outputs, a symbolic size and a kernel, shared by these tests."""

from __future__ import annotations

import pytest
import torch

import tkc
from tests.runtime.profiled_models import WIDTH, Layers
from tkc.runtime.cuda_graphs import CudaGraphs


@pytest.fixture(autouse=True)
def _records_small_models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests on a GPU replay models that would be sooner launched."""
    if request.node.get_closest_marker("gpu") is not None:
        monkeypatch.setattr(CudaGraphs, "_is_worth_recording", lambda *_: True)


class GatedSum(torch.nn.Module):
    """A projection and a SwiGLU, called with a keyword, a nested dictionary and a constant."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.up = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor, extra: dict[str, torch.Tensor], double: bool = False) -> dict[str, object]:
        """``x [batch, 16]`` and ``extra["y"] [batch, 32]``."""
        gated = torch.nn.functional.silu(self.up(x)) * extra["y"]
        return {"gated": gated * 2 if double else gated, "rest": (x.sum(-1), extra["y"].mean(-1))}


@pytest.fixture(scope="session")
def model() -> GatedSum:
    """The source model."""
    torch.manual_seed(0)
    return GatedSum().eval()


@pytest.fixture(scope="session")
def executable(model: GatedSum) -> tkc.Executable:
    """The model, compiled for the CPU with a batch of 1 to 64."""
    batch = torch.export.Dim("batch", min=1, max=64)
    x, y = torch.randn(3, 16), torch.randn(3, 32)
    return tkc.compile(
        model,
        (x,),
        {"extra": {"y": y}, "double": False},
        kernels="all",
        dynamic_shapes={"x": {0: batch}, "extra": {"y": {0: batch}}, "double": None},
    )


@pytest.fixture(scope="module", params=["none", "all"])
def layers(request: pytest.FixtureRequest) -> tkc.Executable:
    """Compiled for any number of rows, with and without kernels."""
    torch.manual_seed(0)
    shapes = ({0: torch.export.Dim("rows", max=4096)},)
    example = (torch.randn(4, WIDTH),)
    return tkc.compile(Layers().eval(), example, dynamic_shapes=shapes, kernels=request.param, database=False)
