"""Tensors without elements, at one call of many or in every one, and without dimensions, against PyTorch."""

from __future__ import annotations

import torch
from test_torch_numbers import Several, check
from torch.export import Dim

import tkc


def test_no_rows_at_a_call() -> None:
    """One module whose rows are 0, 1 or more: sums, scans, truth, rotations of nothing."""
    model = Several(
        {
            "sum": torch.sum,
            "prod": torch.prod,
            "mean": torch.mean,
            "any": lambda x: x.any(0),
            "all": torch.all,
            "cumsum": lambda x: x.cumsum(0),
            "cumprod": lambda x: x.cumprod(0),
            "roll": lambda x: x.roll(1, 0),
            "var": lambda x: x.var(0),
        }
    )
    exe = tkc.compile(model, (torch.randn(4, 3),), dynamic_shapes={"inputs": ({0: Dim("rows", min=0, max=64)},)})
    for rows in (0, 1, 5):
        x = torch.randn(rows, 3)
        found, expected = exe(x), model(x)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True, msg=f"{name} of {rows} rows")


def test_no_elements_and_no_dimensions() -> None:
    """Sizes of zero that are known, and tensors of one number where an operator takes a dimension."""
    empty, scalar, first = torch.zeros(3, 0), torch.tensor(2.5), torch.tensor([0])
    functions = {
        "roll": lambda e, s, i: e.roll(1, 1),
        "tile": lambda e, s, i: e.tile(1, 1, 2),
        "repeat": lambda e, s, i: e.repeat(2, 3),
        "var": lambda e, s, i: e.var(),
        "lse": lambda e, s, i: e.logsumexp(1),
        "split": lambda e, s, i: torch.ones(4).split([1, 0, 3]),
        "max": lambda e, s, i: s.max(0),
        "topk": lambda e, s, i: s.topk(1),
        "sort": lambda e, s, i: s.sort(),
        "argmin": lambda e, s, i: s.argmin(0),
        "select": lambda e, s, i: s.index_select(0, i),
        "add": lambda e, s, i: s.index_add(0, i, s, alpha=2),
    }
    check(functions, empty, scalar, first, tolerance=1e-6)
