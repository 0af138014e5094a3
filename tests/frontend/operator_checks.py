"""Operators beside PyTorch's, with a symbolic first axis and at two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from tests.frontend import execution
from tests.frontend.side_by_side import Function, Several
from tkc.frontend.torch.importer import import_torch

SIZES = (5, 8)


def check(functions: Mapping[str, Function], *make: Callable[[int], torch.Tensor], tolerance: float = 1e-5) -> None:
    """Import the functions once, run them at each size, and compare each result."""
    model = Several(functions)
    rows = Dim("rows", min=5, max=64)
    examples = tuple(function(SIZES[0]) for function in make)
    imported = import_torch(model, examples, dynamic_shapes={"inputs": tuple({0: rows} for _ in examples)})
    assert set(imported.signature.sizes) == {"rows"}
    run = execution.executable(imported)
    for size in SIZES:
        inputs = [function(size) for function in make]
        expected = model(*inputs)
        names = [name for name, value in expected.items() for _ in pytree.tree_leaves(value)]
        pairs = zip(run(*inputs), pytree.tree_leaves(expected), strict=True)
        errors = {name: execution.relative_error(*pair) for name, pair in zip(names, pairs, strict=True)}
        assert {name: error for name, error in errors.items() if error > tolerance} == {}


def real(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Callable[[int], torch.Tensor]:
    """Numbers of both signs, ``[rows, *shape]``."""
    return lambda rows: torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(*shape: int, low: int = -9, high: int = 10, seed: int = 0) -> Callable[[int], torch.Tensor]:
    """Whole numbers in ``[low, high)``, ``[rows, *shape]``."""
    return lambda rows: torch.randint(low, high, (rows, *shape), generator=torch.Generator().manual_seed(seed))
