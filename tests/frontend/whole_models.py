"""Functions as models, compiled for the CPU without kernels, and their results beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import tkc


class Model(nn.Module):
    """A function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the function gives."""
        return self.function(*inputs)


def compiled(function: Callable[..., Any], *examples: torch.Tensor, **options: Any) -> tkc.Executable:
    """The function compiled for the CPU without kernels."""
    return tkc.compile(Model(function), examples, kernels="none", database=False, **options)


def called(executable: tkc.Executable) -> dict[str, int]:
    """The operators that the report names, with the number of calls."""
    return {use.operator: use.calls for use in executable.report.operators}


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same structure, with numbers of the same type."""
    (found, found_spec), (expected, expected_spec) = map(pytree.tree_flatten, (found, expected))
    assert found_spec == expected_spec
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor | float):
            if isinstance(other, torch.Tensor):
                one, other = one.resolve_conj(), other.resolve_conj()
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert one == other
