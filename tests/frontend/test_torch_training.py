"""Models in training mode, whose running statistics are buffers that each call changes, and derivatives in models."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import tkc
from tests.schedules.graphs import Model


def _shared() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    return nn.Sequential(norm, nn.ReLU(), norm)


class Tied(nn.Module):
    """Layers with one weight beside an input that is changed; arguments that are called as Python's functions are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, input: torch.Tensor, sum: torch.Tensor) -> torch.Tensor:
        """``[N, 3]``; adds to ``sum``."""
        sum.add_(self.first(input))
        return self.second(sum)


IMAGES = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(1))
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), IMAGES),
    "rows": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False, momentum=0.3)), IMAGES[:, 0, 0]),
    "volumes": (lambda: nn.Sequential(nn.BatchNorm3d(4)), IMAGES[None]),
    "one layer twice": (_shared, IMAGES),
    "each instance": (lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), IMAGES),
    "bfloat16 by float32": (lambda: nn.Sequential(nn.BatchNorm2d(3)), IMAGES.bfloat16()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.daily(3)
def test_running_statistics_follow_pytorch(name: str) -> None:
    """After each of two calls: ``nn.Sequential`` calls its argument ``input``, which FX would rename."""
    make, x = MODELS[name]
    model = make().train()
    expected = copy.deepcopy(model)
    executable = tkc.compile(model, (x,), fallback=False)
    for scale in (1, 3):
        result = expected(x * scale)
        tolerance = 1e-5 if x.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(executable(x * scale), result, rtol=tolerance, atol=tolerance)
        buffers, state = dict(expected.named_buffers()), executable.state
        assert {"num_batches_tracked", "running_mean"} & {key.rpartition(".")[2] for key in state}
        for key, value in state.items():
            torch.testing.assert_close(value, buffers[key], rtol=1e-5, atol=1e-6)


def test_a_batch_of_one_row_is_refused_when_it_is_called() -> None:
    """PyTorch checks that in Python, which no exported graph has; of a batch of nothing it computes nothing."""
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).train()
    shapes = {"input": {0: Dim.DYNAMIC}}
    executable = tkc.compile(model, (torch.randn(5, 4),), dynamic_shapes=shapes, fallback=False)
    for rows in (2, 7, 0):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x), model(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(tkc.InputError, match=r"!= 1; found .* = 1"):
        executable(torch.randn(1, 4))


def test_tied_weights_beside_an_input_that_is_changed() -> None:
    """PyTorch's tracer takes no tensor twice, if the program changes one."""
    model, x = Tied(), torch.randn(2, 3)
    executable = tkc.compile(model, (x, torch.zeros(2, 3)), fallback=False)
    found, expected = torch.ones(2, 3), torch.ones(2, 3)
    torch.testing.assert_close(executable(x, found), model(x, expected))
    torch.testing.assert_close(found, expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "function",
    [
        torch.func.grad(lambda x: x.pow(3).sum()),
        torch.func.jacrev(lambda x: x.pow(3)),
        torch.func.hessian(lambda x: x.pow(3).sum()),
        lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    ],
    ids=["grad", "jacrev", "hessian", "vjp"],
)
def test_derivatives_are_refused_by_what_to_do_instead(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """No address of a function stands in the message, and the way that it names works."""
    model, x = Model(function), torch.randn(3)
    with pytest.raises(tkc.UnsupportedModelError, match=r"torch\.func\.grad.*make_fx.*torch\.compile") as refused:
        tkc.compile(model, (x,))
    assert " at 0x" not in str(refused.value)
    torch.testing.assert_close(tkc.compile(make_fx(model)(x), (x,), fallback=False)(x), function(x))
