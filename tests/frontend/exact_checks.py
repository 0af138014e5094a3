"""Results beside PyTorch's, element by element, NaN and infinity included."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils import _pytree as pytree

from tests.frontend import execution
from tests.frontend.side_by_side import Function, Several
from tkc.frontend.torch.importer import import_torch


def check(functions: Mapping[str, Function], *inputs: torch.Tensor, tolerance: float = 0.0) -> None:
    """Each result element by element: NaN where PyTorch has it, the rest equal up to a relative ``tolerance``."""
    model = Several(functions)
    expected = model(*inputs)
    found = execution.executable(import_torch(model, inputs))(*inputs)
    names = [name for name, value in expected.items() for _ in pytree.tree_leaves(value)]
    differences = {
        name: told
        for name, left, right in zip(names, found, pytree.tree_leaves(expected), strict=True)
        if (told := difference(left, right, tolerance, inputs))
    }
    assert differences == {}


def difference(found: torch.Tensor, expected: torch.Tensor, tolerance: float, inputs: tuple[torch.Tensor, ...]) -> str:
    """The first element that differs, in words, and what it was computed from; empty if there is none."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
    wide = torch.float64 if expected.is_floating_point() else expected.dtype
    left, right = found.to(wide), expected.to(wide)
    equal = (left == right) | ((left != left) & (right != right))
    if expected.is_floating_point():
        equal |= (left - right).abs() <= tolerance * right.abs()
    if equal.all():
        return ""
    first = int((~equal).flatten().nonzero()[0].item())
    of = [x.flatten()[first].item() for x in inputs if x.numel() == found.numel()]
    return f"{found.flatten()[first].item()} instead of {expected.flatten()[first].item()} of {of}"
