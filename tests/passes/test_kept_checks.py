"""What a model asserts of sizes that its data decides is checked, whatever becomes of what has these sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tkc

Form = Callable[[Tensor, Tensor], object]


def _most(size: int) -> None:
    torch._check(size <= 2)


def _nothing_of_it(x: Tensor, mask: Tensor) -> object:
    rows = x[: mask.sum().item()]  # type: ignore[misc]  # an integer
    _most(rows.shape[0])
    return rows[:, :0] * 2


def _summed_nothing(x: Tensor, mask: Tensor) -> object:
    rows = x[mask]
    _most(rows.shape[0])
    return rows[:, :0].sum(), x + 1


def _asserted_number(x: Tensor, mask: Tensor) -> object:
    count = mask.sum().item()
    _most(count)  # type: ignore[arg-type]  # an integer
    return x * 2


def _unread_rows(x: Tensor, mask: Tensor) -> object:
    rows = x[mask]
    _most(rows.shape[0])
    return x * 2


def _size_alone(x: Tensor, mask: Tensor) -> object:
    rows = x[: mask.sum().item()]  # type: ignore[misc]  # an integer
    _most(rows.shape[0])
    return torch.zeros(rows.shape[0]), x + 1


FORMS: dict[str, Form] = {
    "nothing of it": _nothing_of_it,
    "the sum of nothing": _summed_nothing,
    "an asserted number": _asserted_number,
    "rows that nothing reads": _unread_rows,
    "the size alone": _size_alone,
}


class Model(torch.nn.Module):
    """One of the forms."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, mask: Tensor) -> object:
        """What the form gives."""
        return self.form(x, mask)


@pytest.mark.parametrize("form", FORMS)
def test_asserted_sizes_are_checked(form: str) -> None:
    """A call in which the assertion holds is right; one in which it does not names it."""
    model, x = Model(FORMS[form]), torch.randn(5, 3)
    holds, fails = torch.tensor([True, False, True, False, False]), torch.tensor([True, True, True, False, False])
    executable = tkc.compile(model, (x, holds), target="cpu", database=False)
    torch.testing.assert_close(executable(x, holds), model(x, holds))
    with pytest.raises(tkc.InputError, match=r"<= 2|at most 2"):
        executable(x, fails)
    torch.testing.assert_close(executable(x, holds), model(x, holds))


class Specialized(torch.nn.Module):
    """Rows that PyTorch takes for none: it exports them for what they are subtracted from."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, and nothing less them."""
        rows = x[: mask.sum().item()].clone()  # type: ignore[misc]  # an integer
        return rows * x, x[:0].repeat(1).sub_(rows)


def test_a_size_that_export_settled_is_checked() -> None:
    """One row in place of none was an empty result (graph 1212 of the fuzzer's seed 202640)."""
    model, x = Specialized(), torch.randn(1)
    executable = tkc.compile(model, (x, torch.tensor([False])), target="cpu", database=False)
    torch.testing.assert_close(executable(x, torch.tensor([False])), model(x, torch.tensor([False])))
    with pytest.raises(tkc.InputError, match="does not hold in this call"):
        executable(x, torch.tensor([True]))
