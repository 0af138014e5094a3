"""Inputs under names that Python has too: graphs that are copied keep them, whatever the copy is for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import tkc
from tests.frontend import execution
from tests.frontend.whole_models import same
from tkc.frontend.torch.importer import import_torch


class Spectrum(nn.Module):
    """Complex numbers inside, and an input that is one."""

    def forward(self, input: Tensor, filter: Tensor, id: Tensor) -> Tensor:
        """The filtered signal."""
        return torch.view_as_real(torch.view_as_complex(input) * filter + id)


class Held(nn.Module):
    """Keeps a tensor twice: as a buffer, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = [torch.zeros(3, 2)]
        self.register_buffer("kept", self.tensors[0])

    def forward(self, input: Tensor, filter: Tensor, id: Tensor) -> Tensor:
        """Adds the input to what is kept."""
        self.tensors[0].add_(input)
        return self.kept * filter[:, None] + id[:, None]


class Attention(nn.Module):
    """An operator whose functions are written out."""

    def forward(self, input: Tensor, filter: Tensor, id: Tensor) -> Tensor:
        """A score that reads an input."""
        heads = input[None, None]
        return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, i, j: score * id[j])[0, 0]


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", [Spectrum, Held, Attention])
def test_inputs_named_as_pythons_own_functions(model: type[nn.Module]) -> None:
    """``torch.fx`` names the copy of such a value otherwise."""
    torch.manual_seed(0)
    args = torch.randn(3, 2), torch.randn(3), torch.randn(3)
    imported = import_torch(model(), args)
    assert [spec.name for spec in imported.signature.inputs] == ["input", "filter", "id"]
    with torch.no_grad():
        expected = model()(*args)
    same(execution.executable(imported)(*args)[0], expected)


class NamedAsFunctions(nn.Module):
    """Tensors whose names generated code calls functions by."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("floor", torch.rand(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor, exp: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
        """All ``[8]``."""
        return torch.exp(x) * exp + torch.log(log).floor() * self.floor


def test_names_of_functions() -> None:
    """CUDA code compiles, and what the caller says of the inputs are their own names."""
    inputs = tuple(torch.rand(8, dtype=torch.float64) for _ in range(3))
    exe = tkc.compile(NamedAsFunctions(), inputs, target="cuda:sm_90a", database=False)
    assert [spec.name for spec in exe.signature.inputs] == ["x", "exp", "log"]
