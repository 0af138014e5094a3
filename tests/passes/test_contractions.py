"""Sums of broadcast products become matrix products, and sums of other products stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import evaluated, imported
from tkc.passes.canonical.contractions import Contractions

Function = Callable[[Tensor, Tensor], Tensor]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]

PRODUCTS: dict[str, tuple[Function, Shapes]] = {
    "scores": (lambda c, b: (c[:, :, None] * b[:, None]).sum(-1), ((3, 20, 24), (3, 17, 24))),
    "of heads, summed in the middle": (
        lambda m, x: (m[..., None] * x[:, None]).sum(2),
        ((3, 20, 18, 4), (3, 18, 4, 16)),
    ),
    "outer products": (lambda b, x: (b[..., None, :] * x[..., None]).sum(1), ((3, 18, 4, 16), (3, 18, 4, 20))),
    "the right one first": (lambda c, b: (b[:, None] * c[:, :, None]).sum(-1), ((3, 20, 24), (3, 17, 24))),
    "repeated": (lambda c, b: (c[:, :, None].expand(-1, -1, 17, -1) * b[:, None]).sum(-1), ((3, 20, 24), (3, 17, 24))),
    "sizes kept": (lambda c, b: (c[:, :, None] * b[:, None]).sum(-1, keepdim=True), ((3, 20, 24), (3, 17, 24))),
    "two axes": (lambda c, b: (c[:, :, None] * b[:, None]).sum((-1, -2)), ((3, 20, 6, 4), (3, 17, 6, 4))),
    "of unlike ranks": (lambda c, b: (c[:, :, None] * b).sum(-1), ((3, 20, 24), (17, 24))),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("symbolic", [(), (0, 1)], ids=["known", "symbolic"])
def test_becomes_a_product(form: str, symbolic: tuple[int, ...]) -> None:
    """Also where only calls know the first axis."""
    function, shapes = PRODUCTS[form]
    if symbolic and shapes[0][0] != shapes[1][0]:
        symbolic = (0,)
    examples = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    module = Contractions()(imported(function, *examples, symbolic=symbolic))
    assert module.script().count("R.matmul(") == 1 and "R.sum(" not in module.script().split("R.matmul(")[1]
    torch.testing.assert_close(evaluated(module, *examples)[0], function(*examples), rtol=1e-4, atol=1e-4)


OTHERS: dict[str, tuple[Function, Shapes]] = {
    "a row": (lambda x, w: (x[:, None] * w).sum(-1), ((3, 24), (3, 20, 24))),
    "weights of rows": (lambda x, w: (x * w[..., None]).sum(1), ((3, 4, 64), (3, 4))),
    "few columns": (lambda c, b: (c[:, :, None] * b[:, None]).sum(-1), ((3, 20, 24), (3, 8, 24))),
    "over what one has": (lambda c, b: (c[:, :, None] * b[:, None]).sum(-2), ((3, 20, 24), (3, 17, 24))),
    "over what both have and what one has": (
        lambda c, b: (c[:, :, None] * b[:, None]).sum((-2, -1)),
        ((3, 20, 24), (3, 17, 24)),
    ),
    "squares": (lambda x, _: (x * x).sum(-1), ((3, 20, 24), (3,))),
    "not summed": (lambda c, b: c[:, :, None] * b[:, None], ((3, 20, 24), (3, 17, 24))),
    "integers": (
        lambda c, b: (c.int()[:, :, None] * b.int()[:, None]).sum(-1, dtype=torch.int32),
        ((3, 20, 24), (3, 17, 24)),
    ),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_sums_stay(form: str) -> None:
    """There is nothing to win, or no product."""
    function, shapes = OTHERS[form]
    module = imported(function, *(torch.randn(shape) for shape in shapes))
    assert "R.matmul(" not in Contractions()(module).script()
