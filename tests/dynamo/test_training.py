"""Models that are trained under ``torch.compile(backend="tkc")``, and weights that change behind its back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.dynamo.comparing import check_compiled, check_same
from tkc.dynamo.backend import tkc


def _trained(*, compiled: bool) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 10),
        nn.Dropout(0.3),
    )
    call = torch.compile(model, backend=tkc) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    losses = []
    for step in range(3):
        x, labels = torch.randn(4 + step, 3, 8, 8), torch.randint(0, 10, (4 + step,))
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, model.state_dict()


@pytest.mark.daily(1)
def test_a_network_learns_as_in_pytorch() -> None:
    """Losses, weights and running statistics of three steps with batches of three sizes, dropout included."""
    check_same(_trained(compiled=False), _trained(compiled=True), 1e-4)


@pytest.mark.daily(1)
def test_a_transformer_layer() -> None:
    """Attention with dropout, whose numbers are drawn in the order of memory."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    check_compiled(layer, torch.randn(2, 5, 16, requires_grad=True))


@pytest.mark.daily(1)
def test_checkpoints_with_random_numbers() -> None:
    """The backward pass computes anew what the checkpoint holds, with the numbers that the forward pass drew."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU())

    def region(x):
        return layer(x) + torch.rand_like(x) * x

    def function(x):
        return checkpoint(region, x, use_reentrant=False) + x, torch.rand(2)

    check_compiled(function, torch.randn(3, 4, requires_grad=True))


def test_weights_that_change() -> None:
    """In place, by ``data``, loaded, replaced, of another dtype."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    call = torch.compile(model, backend=tkc)
    with torch.no_grad():
        check_same(model(x), call(x))
        model.weight.add_(1)
        check_same(model(x), call(x))
        model.weight.data = torch.ones(4, 4)
        check_same(model(x), call(x))
        model.load_state_dict({"weight": torch.randn(4, 4), "bias": torch.randn(4)})
        check_same(model(x), call(x))
        model.weight = nn.Parameter(torch.randn(4, 4))
        check_same(model(x), call(x))
        model.double()
        check_same(model(x.double()), call(x.double()))


def test_optimizer_steps_are_seen() -> None:
    """A step changes what the next call computes."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    call = torch.compile(model, backend=tkc)
    optimizer = torch.optim.SGD(call.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        call(x).sum().backward()
        optimizer.step()
        check_same(model(x).detach(), call(x).detach())


def test_weights_are_not_kept() -> None:
    """A model that is deleted is freed, compiled or not."""
    model = nn.Linear(64, 64)
    call = torch.compile(model, backend=tkc)
    call(torch.randn(2, 64)).sum().backward()
    weight = weakref.ref(model.weight)
    del model, call
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None


def test_a_second_backward_pass_is_refused() -> None:
    """By PyTorch, by name."""
    x = torch.randn(4, requires_grad=True)
    loss = torch.compile(lambda x: (x.sin() * x).sum(), backend=tkc)(x)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
