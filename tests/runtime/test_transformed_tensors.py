"""Tensors that PyTorch transforms (forward-mode differentiation, ``torch.func``) are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import tkc


class Scale(nn.Module):
    """A product with a number, or with a tensor."""

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """``[2, 3]``."""
        return x * factor


@pytest.fixture(scope="module")
def compiled() -> tkc.Executable:
    """Of two inputs."""
    return tkc.compile(Scale(), (torch.ones(2, 3), torch.ones(3)), kernels="none", database=False)


X, FACTOR = torch.randn(2, 3), torch.randn(3)


@pytest.mark.parametrize(
    "transform",
    [
        lambda call: torch.func.jvp(lambda factor: call(X, factor), (FACTOR,), (FACTOR,)),
        lambda call: torch.func.grad(lambda factor: call(X, factor).sum())(FACTOR),
        lambda call: torch.func.vmap(lambda factor: call(X, factor))(FACTOR[None]),
        lambda call: torch.func.jacfwd(lambda factor: call(X, factor))(FACTOR),
    ],
    ids=["jvp", "grad", "vmap", "jacfwd"],
)
def test_function_transforms_are_refused(compiled: tkc.Executable, transform: Callable[[Any], Any]) -> None:
    """With the name of the input, and what works: the model itself."""
    with pytest.raises(tkc.InputError, match=r"input 'factor' is a tensor of torch\.func .*jvp\(model, ...\)"):
        transform(compiled)
    transform(Scale())


def test_dual_tensors_are_refused(compiled: tkc.Executable) -> None:
    """Their tangents were dropped. Tensors without one are taken, in a dual level too."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(tkc.InputError, match="input 'x' is a dual tensor of forward-mode differentiation"):
            compiled(dual, FACTOR)
        torch.testing.assert_close(compiled(X, FACTOR), X * FACTOR)
    torch.testing.assert_close(compiled(X, FACTOR), X * FACTOR)
