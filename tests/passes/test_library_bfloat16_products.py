"""Matmuls of bfloat16 on the CPU by PyTorch's library, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tests.schedules.graphs import Applied
from tkc.kernels.target import Target
from tkc.schedules.target import multiplies_bfloat16, tvm_target

pytestmark = pytest.mark.skipif(
    not multiplies_bfloat16(tvm_target(Target("cpu"))), reason="this CPU multiplies no bfloat16"
)
ROWS = Dim("rows", min=0, max=4096)
PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "matrices": (torch.matmul, [(70, 130), (130, 90)]),
    "by a transpose": (lambda x, w: x @ w.mT, [(70, 130), (90, 130)]),
    "of a transpose": (lambda x, w: x.mT.contiguous() @ w, [(130, 70), (130, 90)]),
    "one matrix for all": (torch.matmul, [(3, 40, 130), (130, 90)]),
    "by transposes": (lambda x, w: x @ w.mT, [(2, 3, 40, 130), (2, 3, 90, 130)]),
    "broadcast batches": (torch.matmul, [(2, 1, 40, 130), (3, 130, 90)]),
    "with what follows": (lambda x, w, b: torch.relu(x @ w.mT + b) * 2, [(70, 130), (90, 130), (90,)]),
    "of views": (lambda x, w: x[:, 3:133] @ w[5:95].mT, [(70, 140), (100, 130)]),
}


def _check(executable: tkc.Executable, function: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...]) -> None:
    found, exact = executable(*args), function(*(each.double() for each in args))
    assert found.dtype == torch.bfloat16
    size = function(*(each.double().abs() for each in args)).abs().max() if exact.numel() else 1.0
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7 * float(size) / 16)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_products_are_pytorchs(name: str, is_open: bool) -> None:
    """Also of no rows, and of one, where their number is open."""
    function, shapes = PRODUCTS[name]
    rows = len(shapes[0]) - 1 if name == "of a transpose" else len(shapes[0]) - 2
    args = tuple(torch.randn(shape).bfloat16() for shape in shapes)
    dynamic = {"args": ({rows: ROWS}, *(None for _ in shapes[1:]))} if is_open else None
    executable = tkc.compile(Applied(function), args, database=False, dynamic_shapes=dynamic)
    (use,) = executable.report.library_calls
    assert (use.operator, use.calls) == ("aten::matmul", 1)
    _check(executable, function, args)
    for count in (0, 1, 5) if is_open else ():
        _check(executable, function, (args[0].narrow(rows, 0, count), *args[1:]))


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 1), ({"kernels": "none"}, 64), ({"kernels": "all"}, 64), ({"batch_invariant": True}, 64)],
    ids=["one row", "no kernels", "all kernels", "the same bits"],
)
def test_generated_code_multiplies_where_it_is_faster_or_asked_for(options: dict[str, object], rows: int) -> None:
    """A row is read, and no more; libraries may sum in another order for another batch."""
    layer, x = nn.Linear(256, 128).bfloat16().eval(), torch.randn(rows, 256).bfloat16()
    executable = tkc.compile(layer, (x,), database=False, **options)
    assert not executable.report.library_calls
    torch.testing.assert_close(executable(x), layer(x), rtol=2e-2, atol=2e-2)


def test_small_products_are_generated_code() -> None:
    """A call takes longer."""
    layer, x = nn.Linear(32, 32).bfloat16().eval(), torch.randn(16, 32).bfloat16()
    assert not tkc.compile(layer, (x,), database=False).report.library_calls
