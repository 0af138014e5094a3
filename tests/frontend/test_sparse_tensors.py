"""Sparse tensors within a model: made and read by PyTorch's operators, which are called where what is dense is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tkc
from tests.frontend.whole_models import called, compiled

EDGES = torch.tensor([[0, 1, 1, 3], [1, 0, 0, 2]])
SOME = (torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) > 0.5).float()

WITHIN: dict[str, Callable[..., Any]] = {
    "there and back": lambda x: (x.relu().to_sparse() * 2).to_dense() + 1,
    "read twice": lambda x: [f(x.to_sparse()).to_dense() for f in (torch.neg, lambda y: torch.sparse.sum(y, 1))],
    "softmax": lambda x: torch.sparse.softmax(x.relu().to_sparse(), 1).to_dense(),
    "product": lambda x: torch.sparse.mm(x.relu().to_sparse(), x.T) + 1,
    "rows": lambda x: (x.relu().to_sparse_csr() @ x.T).exp(),
    "of two": lambda x: (x.to_sparse() + (x * 2).to_sparse()).to_dense(),
    "transposed": lambda x: torch.sparse.mm(x.to_sparse().t(), x),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", WITHIN)
def test_made_and_read_within_the_model(name: str) -> None:
    """The neighbours are compiled; each operator is named."""
    function, x = WITHIN[name], torch.randn(4, 5)
    executable = compiled(function, x)
    assert called(executable)
    for given in (x, torch.zeros(4, 5), torch.randn(4, 5)):
        torch.testing.assert_close(executable(given), function(given))


def test_of_indices_and_values() -> None:
    """A layer of a graph network, whose edges come with each call; places that come twice are added."""

    def layer(edges: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(torch.sparse_coo_tensor(edges, weights, (4, 4)), x * 2).relu()

    example = EDGES, torch.rand(4), torch.randn(4, 3)
    executable = compiled(layer, *example)
    torch.testing.assert_close(executable(*example), layer(*example))
    other = EDGES.flip(0), torch.randn(4), torch.randn(4, 3)
    torch.testing.assert_close(executable(*other), layer(*other))


class _Graph(nn.Module):
    def __init__(self, adjacency: torch.Tensor, product: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(self.adjacency, x + 1)


@pytest.mark.daily(2)
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr], ids=["coo", "csr"])
@pytest.mark.parametrize(
    "product",
    [torch.sparse.mm, torch.matmul, lambda a, x: torch.sparse.addmm(x, a, x, beta=0.5, alpha=2.0)],
    ids=["sparse.mm", "matmul", "addmm"],
)
def test_weights(make: Callable[..., torch.Tensor], product: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    """Of an artifact, too."""
    model, x = _Graph(make(SOME), product), torch.randn(4, 3)
    executable = tkc.compile(model, (x,))
    executable.save(tmp_path / "graph.tkc")
    for each in (executable, tkc.load(tmp_path / "graph.tkc")):
        torch.testing.assert_close(each(x), model(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.to_sparse(), r"output '.*' \(.*\) is a sparse tensor; return its \.to_dense\(\)"),
        (lambda x: x.to_sparse().coalesce().values() + 1, "values[\s\S]*is not known while"),
        (lambda x: x.to_sparse().coalesce().indices().sum(), "indices[\s\S]*is not known while"),
        (lambda x: x.to_sparse_csr().crow_indices() + 1, "crow_indices[\s\S]*is not known while"),
    ],
    ids=["output", "values", "indices", "crow_indices"],
)
def test_what_cannot_be_is_refused(function: Callable[..., Any], message: str) -> None:
    """By the operator, with the reason and the cure."""
    with pytest.raises(tkc.UnsupportedModelError, match=message):
        compiled(function, torch.randn(4, 4))


def test_without_a_fallback_all_operators_are_named() -> None:
    """Those on sparse tensors as others."""
    with pytest.raises(tkc.UnsupportedModelError) as error:
        tkc.compile(_Graph(SOME.to_sparse(), torch.sparse.mm), (torch.randn(4, 3),), fallback=False)
    assert "_sparse_addmm" in str(error.value) or "_sparse_mm" in str(error.value)
