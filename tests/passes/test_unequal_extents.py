"""Parts of what matmuls, reductions and other functions compute, and more than that: they are no copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tkc

TOKENS, INPUTS, OUTPUTS = 5, 64, 32
FEW = 4
"""Outputs that are too few for a kernel of products: TVM's rules schedule the matmul."""


class _Part(nn.Module):
    def __init__(self, part: Callable[[nn.Module, torch.Tensor], torch.Tensor], outputs: int) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(INPUTS, outputs), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.linear, x)


MATMULS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "first token, kept axis": lambda linear, x: linear(x)[:, :1],
    "first token": lambda linear, x: linear(x)[:, 0],
    "first row": lambda linear, x: linear(x)[:1],
    "first column": lambda linear, x: linear(x)[..., :1],
    "behind a residual": lambda linear, x: (x[..., :OUTPUTS] + linear(x))[:, :1],
}
OTHERS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "half": lambda linear, x: linear(x)[..., : OUTPUTS // 2].relu(),
    "chunk": lambda linear, x: linear(x).chunk(2, -1)[0].sigmoid(),
    "narrow": lambda linear, x: linear(x).narrow(1, 0, 3) + 1,
    "sum": lambda linear, x: x.sum(-1)[:1],
    "mean": lambda linear, x: x.mean(1)[:, :5] * 2,
    "maximum": lambda linear, x: x.amax(-1)[:, :2].relu(),
    "softmax": lambda linear, x: x.softmax(-1)[:, :1],
    "normalization": lambda linear, x: nn.functional.layer_norm(x, (INPUTS,))[:, :1],
    "batched": lambda linear, x: torch.bmm(x, x.transpose(1, 2))[:, :, :1],
    "running sum": lambda linear, x: x.cumsum(1)[:, :1],
}
PADDED: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "columns": lambda linear, x: nn.functional.pad(linear(x).relu(), (0, 2), value=1.0),
    "rows": lambda linear, x: nn.functional.pad(linear(x) * 2, (0, 0, 0, 3)),
    "rows of a matrix": lambda linear, x: nn.functional.pad(linear(x.flatten(0, 1)), (0, 0, 0, 2), value=1.0),
    "of a batch": lambda linear, x: nn.functional.pad(x @ x[:, :FEW].transpose(1, 2), (0, 3)),
    "a product": lambda linear, x: nn.functional.pad(x @ x.transpose(1, 2), (0, 5), value=-1.0),
    "a column less, a row more": lambda linear, x: nn.functional.pad(linear(x).sigmoid(), (0, -1, 0, 1)),
    "a sum": lambda linear, x: nn.functional.pad(x.sum(-1), (0, 1), value=2.0),
    "a normalization": lambda linear, x: nn.functional.pad(nn.functional.layer_norm(x, (INPUTS,)), (0, 1, 0, 1)),
    "written over the beginning": lambda linear, x: torch.slice_scatter(x, linear(x).tanh(), 2, end=FEW),
    "a column joined": lambda linear, x: torch.cat([linear(x), x.new_full((*x.shape[:2], 1), 3.0)], -1).relu(),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", PADDED)
@torch.no_grad()
def test_padded_results(name: str) -> None:
    """What lies beyond a matmul's results has no product: TVM would leave it as it found it."""
    _check(PADDED[name], FEW)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MATMULS)
@torch.no_grad()
def test_parts_of_matmuls(name: str) -> None:
    """At symbolic sizes, too: TVM would store each token's product where the first token's belongs."""
    _check(MATMULS[name])


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_parts_of_other_results(name: str) -> None:
    """Of reductions, and longer parts."""
    _check(OTHERS[name])


def _check(part: Callable[[nn.Module, torch.Tensor], torch.Tensor], outputs: int = OUTPUTS) -> None:
    torch.manual_seed(0)
    model = _Part(part, outputs).eval()
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=TOKENS)
    static = tkc.compile(model, (torch.randn(2, TOKENS, INPUTS),), target="cpu")
    symbolic = tkc.compile(
        model, (torch.randn(2, TOKENS, INPUTS),), target="cpu", dynamic_shapes=({0: batch, 1: tokens},)
    )
    for executable, shapes in ((static, [(2, TOKENS)]), (symbolic, [(2, TOKENS), (3, 7), (1, 9)])):
        for shape in shapes:
            x = torch.randn(*shape, INPUTS)
            torch.testing.assert_close(executable(x), model(x), rtol=1e-5, atol=1e-5)
