"""Selections whose size the data decides, compiled: masks of any axes, and what is written and computed by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tests.frontend.whole_models import called, compiled, same

ROWS = Dim("rows", min=0, max=1000)


def _indexed(x: torch.Tensor) -> Any:
    mask, columns = x[:, :, 0] > 0, x.sum((0, 2)) > 0
    return x[mask], x[:, columns], x[:, columns, 0], x[mask, 0], x[mask][:, 1:3], x[x > 0]


def _of_other_types(x: torch.Tensor) -> Any:
    mask = x[:, :, 0] > 0
    return x.bool()[mask], x.long()[mask], x.half()[mask], (x > 0.5)[x > 0]


def _written(x: torch.Tensor) -> Any:
    mask, put = x[:, :, 0] > 0, x * 1
    put[mask] = put[mask] * 2 + 1
    return put, (x * 1).index_put((mask,), x[mask] * 3, accumulate=True)


def _by_functions(x: torch.Tensor) -> Any:
    return torch.nonzero(x), torch.nonzero(x.sum() > 0), torch.masked_select(x, x[:, :, :1] > 0)


def _of_parts(x: torch.Tensor) -> Any:
    return x[:, 0][x[:, 0, 0] > 0][:, :2], x[..., torch.tensor([True, False, True, True])]


def _joined(x: torch.Tensor) -> Any:
    return torch.cat([x[x > 0], x[x < 0] * 2])


_KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "indexed": _indexed,
    "other types": _of_other_types,
    "written": _written,
    "functions": _by_functions,
    "parts": _of_parts,
    "joined": _joined,
}


def _check_each_count(exe: tkc.Executable, function: Callable[[torch.Tensor], Any]) -> None:
    """None among them, all, and of tensors without rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, 4, generator=generator)
    for given in (x, torch.randn(400, 6, 4, generator=generator), -x.abs() - 0.1, x.abs() + 0.1, torch.zeros(0, 6, 4)):
        same(exe(given), function(given), 1e-6)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", sorted([*_KINDS, "together"]))
def test_selections_agree_at_each_count(name: str) -> None:
    """Nothing is called in PyTorch, and nothing has to be."""
    function = _KINDS.get(name, lambda x: [each(x) for each in _KINDS.values()])
    exe = compiled(function, torch.ones(5, 6, 4), dynamic_shapes=(({0: ROWS},),), fallback=False)
    assert not called(exe)
    _check_each_count(exe, function)


def test_what_is_computed_of_joined_selections_is_compiled() -> None:
    """Their size is a sum of several that the data decides."""
    exe = compiled(lambda x: _joined(x).exp(), torch.ones(5, 6, 4), dynamic_shapes=(({0: ROWS},),), fallback=False)
    _check_each_count(exe, lambda x: _joined(x).exp())


def _unfit(name: str, x: torch.Tensor) -> torch.Tensor:
    left, right = x[x > 0], x[x < 0]
    if name == "added":
        return left + right
    if name == "written":
        return (x * 1).index_put((x > 0,), right)
    return torch.stack([left, right])


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["added", "written", "stacked"])
def test_selections_that_do_not_fit_are_an_error(name: str) -> None:
    """As in PyTorch, and a call that fits is right after one that does not."""
    fits, unfit = torch.tensor([1.0, -2, -3, 4, 0]), torch.tensor([1.0, 2, 3, -4, -5])
    exe = compiled(lambda x: _unfit(name, x), fits, fallback=False)
    same(exe(fits), _unfit(name, fits), 0)
    with pytest.raises((RuntimeError, IndexError)):
        _unfit(name, unfit)
    with pytest.raises(tkc.InputError, match=r"do not fit each other|does not hold in this call|sizes that do not fit"):
        exe(unfit)
    same(exe(fits), _unfit(name, fits), 0)
