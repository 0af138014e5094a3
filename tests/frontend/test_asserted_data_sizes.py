"""Sizes that the data decides where PyTorch has found while tracing what they have to be: each call is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F

import tkc
from tkc.frontend.torch.data_sizes import _equal_sizes

_ROWS = torch.arange(12.0).reshape(4, 3) - 5
_WEIGHTS = torch.arange(4 * 3 * 2.0).reshape(4, 3, 2) / 7


class _Chosen(nn.Module):
    """A function of ``x [4, 3]`` and of flags ``[4]``, which decide sizes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, flags: torch.Tensor) -> Any:
        return self.function(x, flags)


def _first(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    return x[: flags.sum().item()]


def _replaced(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[: flags.sum().item()] = _ROWS + 1
    return x


def _last_replaced(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[flags.sum().item() // 2 :] = _ROWS[:2]
    return x


def _selected_twice(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    chosen = torch.repeat_interleave(x, flags.long(), 0)
    return (chosen + 2)[:, None] @ _WEIGHTS + chosen[torch.tensor([True, False, True, True])].sum()


def _updated(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    """PyTorch traces this twice, and takes for granted the second time what it asserted the first."""
    chosen = torch.repeat_interleave(x, flags.long(), 0)
    none = chosen - chosen
    mask = torch.tensor([True, False, True, True])
    added = none.index_add(0, torch.nonzero(mask).squeeze(1), none[mask])
    return chosen.add_(2)[:, None] @ _WEIGHTS + added.sum()


OF_FOUR = {
    "a product of updated rows": _updated,
    "a batched product of a part": lambda x, flags: torch.bmm(_first(x, flags)[1:, None], _WEIGHTS[1:]),
    "columns beside a selection": lambda x, flags: torch.cat((x[flags], _ROWS), 1),
    "columns beside a part": lambda x, flags: torch.cat((_ROWS[1:], x[flags][1:] * 2, _ROWS[:3]), -1),
    "product of a slice": lambda x, flags: _first(x, flags)[:, None] @ _WEIGHTS,
    "sum with a slice": lambda x, flags: _first(x, flags) + _ROWS,
    "sum with a part of a slice": lambda x, flags: _first(x, flags)[:, 1:] * _ROWS[:, :2],
    "an assigned slice": _replaced,
    "an assigned slice at the end": _last_replaced,
    "a mask of repeated rows": _selected_twice,
    "a product of repeated rows": lambda x, flags: torch.repeat_interleave(x, flags.long(), 0)[:, None] @ _WEIGHTS,
}
"""Functions for four flags that hold."""


@pytest.mark.daily(4)
@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
@pytest.mark.parametrize("name", OF_FOUR)
def test_a_size_that_was_found_is_checked(name: str, exported: bool) -> None:
    """Four flags are what the model was exported for; other numbers of them are refused."""
    model, flags = _Chosen(OF_FOUR[name]), torch.ones(4, dtype=torch.bool)
    executable = _compiled(model, flags, exported)
    torch.testing.assert_close(executable(_ROWS, flags), model(_ROWS, flags))
    for count in (0, 1, 3):
        with pytest.raises(tkc.InputError, match=r"does not hold|do not fit|as many elements"):
            executable(_ROWS, torch.arange(4) < count)


def _assigned(row: torch.Tensor) -> torch.Tensor:
    target = torch.zeros(1, 1)
    target[:] = row
    return target * 2


OF_ONE = {
    "assigned": _assigned,
    "added": lambda row: row + torch.ones(1, 4),
    "multiplied": lambda row: row @ torch.ones(1, 3),
    "a batch of products": lambda row: torch.bmm(row[:, None], torch.ones(1, 1, 2)),
    "beside a row": lambda row: torch.cat((row, torch.ones(1, 2)), 1),
    "stacked": lambda row: torch.stack((row, torch.ones(1, 1))),
    "chosen": lambda row: torch.where(torch.tensor([[True, False]]), row, -row),
    "expanded": lambda row: row.expand(1, 5) + 1,
    "reshaped": lambda row: row.reshape(1) + 1,
}
"""Functions of a row of one number, which take no two rows."""


@pytest.mark.daily(1)
@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
@pytest.mark.parametrize("name", OF_ONE)
def test_a_size_is_what_it_is_at_least_and_at_most(name: str, exported: bool) -> None:
    """PyTorch asserts no equality where it has found both bounds: there is one row to select, and gather reads one."""
    first = torch.zeros(1, 1, dtype=torch.int64)
    model = _Chosen(lambda x, flags: torch.gather(row := x[flags], 1, first)[0, 0] + OF_ONE[name](row))
    executable = _compiled(model, torch.tensor([True]), exported, _ROWS[:1, :1])
    args = (_ROWS[:1, :1], torch.tensor([True]))
    torch.testing.assert_close(executable(*args), model(*args))
    with pytest.raises(tkc.InputError, match=r"does not hold|do not fit|as many elements"):
        executable(args[0], torch.tensor([False]))


_U0, _U1, _N = sympy.symbols("u0 u1 n", integer=True)
BOUNDS: list[tuple[list[sympy.Basic], set[tuple[sympy.Expr, sympy.Expr]]]] = [
    ([_U0 >= 1, _U0 <= 1], {(_U0, 1)}),
    ([sympy.Le(1, _U0), sympy.Ge(1, _U0)], {(_U0, 1)}),
    ([_U0 > 0, _U0 < 2], {(_U0, 1)}),
    ([_U0 > _N, _U0 <= _N + 1], {(_U0, _N + 1)}),
    ([_U0 >= _U1, _U1 >= _U0], {(_U0, _U1), (_U1, _U0)}),
    ([sympy.Eq(_U0, _N * 2)], {(_U0, _N * 2)}),
    ([_U0 >= 1, _U0 < 1], set()),
    ([_U0 > 1, _U0 <= 1], set()),
    ([_U0 >= 1, _U1 <= 1], set()),
    ([sympy.Ne(_U0, 1)], set()),
]
"""Conditions, and which sizes they say are equal to what."""


@pytest.mark.parametrize(("conditions", "equal"), BOUNDS, ids=[str(conditions) for conditions, _ in BOUNDS])
def test_bounds_that_leave_one_number(conditions: list[sympy.Basic], equal: set[tuple[sympy.Expr, sympy.Expr]]) -> None:
    """Each way to write them; bounds beside each other leave none."""
    assert set(_equal_sizes(conditions)) == equal


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_an_axis_that_was_not_squeezed_is_none_of_one(exported: bool) -> None:
    """The model squeezes an axis whose size the data decides: PyTorch's tracer takes it for another than 1."""
    model = _Chosen(lambda x, flags: (torch.masked_select(x[:, 0], flags).squeeze(0), _first(x, flags).squeeze()))
    executable = _compiled(model, torch.tensor([True, False, True, False]), exported)
    for count in (0, 2, 3, 4):
        flags = torch.arange(4) < count
        for found, expected in zip(executable(_ROWS, flags), model(_ROWS, flags), strict=True):
            torch.testing.assert_close(found, expected)
    with pytest.raises(tkc.InputError, match="exported for u0 != 1"):
        executable(_ROWS, torch.arange(4) < 1)


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_a_mask_may_hold_more_often_than_there_are_elements(exported: bool) -> None:
    """The mask of a selection is broadcast, and so is what is selected from."""
    model = _Chosen(lambda x, flags: torch.masked_select(x[:1], flags[:, None]) * 2)
    executable = _compiled(model, torch.ones(4, dtype=torch.bool), exported)
    for count in range(5):
        flags = torch.arange(4) < count
        torch.testing.assert_close(executable(_ROWS, flags), model(_ROWS, flags))


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_none_is_found_to_be_selected(exported: bool) -> None:
    """A linear layer of no features takes them: what is repeated of them has a size of 0 before PyTorch says so."""
    weight = torch.ones(5, 0)
    model = _Chosen(lambda x, flags: F.linear(x[:, 0][flags].repeat((3, 2)), weight) + x[0, 0])
    flags = torch.zeros(4, dtype=torch.bool)
    executable = _compiled(model, flags, exported)
    torch.testing.assert_close(executable(_ROWS, flags), model(_ROWS, flags))
    with pytest.raises(tkc.InputError, match="does not hold"):
        executable(_ROWS, ~flags)


def _compiled(model: nn.Module, flags: torch.Tensor, exported: bool, x: torch.Tensor = _ROWS) -> tkc.Executable:
    if exported:
        return tkc.compile(torch.export.export(model, (x, flags), strict=False), target="cpu")
    return tkc.compile(model, (x, flags), target="cpu")
