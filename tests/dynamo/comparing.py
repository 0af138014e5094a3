"""Functions compiled by TKC beside the same ones in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tkc.dynamo.backend import tkc


def check_same(expected: Any, found: Any, tolerance: float = 1e-5, *, strides: bool = True) -> None:
    """Assert that all leaves are equal: numbers by type and value, tensors by dtype, shape, strides and closely."""
    left, right = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        if not isinstance(one, torch.Tensor):
            assert type(one) is type(other) and one == other
            continue
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert not strides or one.stride() == other.stride()


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [
        value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for value in arguments
    ]


def _loss(result: Any) -> torch.Tensor:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([leaf.sin().sum() for leaf in leaves]).sum()


def check_compiled(
    function: Callable[..., Any],
    *arguments: Any,
    dynamic: bool | None = None,
    tolerance: float = 1e-5,
    fullgraph: bool = True,
) -> None:
    """Assert that ``function``, compiled, returns what it returns in PyTorch with the same seed, leaves its arguments
    as it does there, and gives them the same gradients."""
    torch._dynamo.reset()
    given, compiled_given = _copies(arguments), _copies(arguments)
    torch.manual_seed(0)
    expected = function(*given)
    torch.manual_seed(0)
    found = torch.compile(function, backend=tkc, dynamic=dynamic, fullgraph=fullgraph)(*compiled_given)
    check_same(expected, found, tolerance)
    check_same(given, compiled_given, tolerance, strides=False)
    tensors = [value for value in given if isinstance(value, torch.Tensor) and value.requires_grad]
    if not tensors:
        return
    _loss(expected).backward()
    _loss(found).backward()
    gradients = [value.grad for value in given if isinstance(value, torch.Tensor)]
    compiled_gradients = [value.grad for value in compiled_given if isinstance(value, torch.Tensor)]
    check_same(gradients, compiled_gradients, max(tolerance, 1e-4), strides=False)
