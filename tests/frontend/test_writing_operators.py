"""Operators of other libraries that write into their arguments, called in PyTorch on copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tests.frontend.whole_models import called, compiled, same

ADD = "tkc_writes::add"


@torch.library.custom_op(ADD, mutates_args={"out"})
def add_into(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
    """Adds ``scale * x`` to ``out``."""
    out.add_(x, alpha=scale)


@torch.library.custom_op("tkc_writes::shift", mutates_args={"out"})
def shift(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """What stood in ``out``, which becomes ``x``."""
    before = out.clone()
    out.copy_(x)
    return before


@shift.register_fake
def _(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(out)


@torch.library.custom_op("tkc_writes::all", mutates_args={"outs", "last"})
def add_to_all(x: torch.Tensor, outs: list[torch.Tensor], last: torch.Tensor | None = None) -> None:
    """Adds ``x`` to each."""
    for out in [*outs, *([] if last is None else [last])]:
        out.add_(x)


writes = torch.ops.tkc_writes


def _made(x: torch.Tensor) -> Any:
    y = x * 2
    writes.add(x, y, 0.5)
    return y + 1


def _result_too(x: torch.Tensor) -> Any:
    y = x * 2
    before = writes.shift(x, y)
    return before - y, y.sum()


def _rows(x: torch.Tensor) -> Any:
    y = x * 2
    writes.add(x[:2], y[1:3])
    return y


def _transposed(x: torch.Tensor) -> Any:
    y = x * 2
    writes.add(x.T, y.T)
    writes.add(x[:, 0], y.select(1, 1))
    return y


def _several(x: torch.Tensor) -> Any:
    y, z = x * 2, x * 3
    writes.all(x, [y, z])
    writes.all(x, [y], z)
    return y, z


def _twice(x: torch.Tensor) -> Any:
    y = x.clone()
    writes.add(y.clone(), y)
    w = y * 1
    writes.add(w, y)
    return y, w


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "made": _made,
    "a result, too": _result_too,
    "rows": _rows,
    "transposed": _transposed,
    "several": _several,
    "twice": _twice,
}


def _all(x: torch.Tensor) -> dict[str, Any]:
    return {name: function(x) for name, function in FUNCTIONS.items()}


def test_what_is_written_is_seen_from_there_on() -> None:
    """Through views, and nowhere else."""
    x = torch.randn(6, 4)
    executable = compiled(_all, x, dynamic_shapes=(({0: Dim("rows", min=4, max=100)},),))
    assert called(executable) == {ADD: 6, "tkc_writes::shift": 1, "tkc_writes::all": 2}
    for each in (x, torch.randn(9, 4)):
        before = each.clone()
        found, expected = executable(each), _all(each)
        for name in FUNCTIONS:
            same(found[name], expected[name])
        same(each, before)


class Accumulates(nn.Module):
    """Adds its input to a buffer and to another input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        writes.add(x, self.total)
        writes.add(x * 2, y)
        return self.total + y


def test_inputs_and_buffers_are_written(tmp_path: Path) -> None:
    """Found changed after the call, and by the next one; also from an artifact."""
    executable = tkc.compile(Accumulates(), (torch.ones(4, 3), torch.ones(4, 3)), kernels="none", database=False)
    loaded = tkc.load(executable.save(tmp_path / "model.tkc"))
    for each in (executable, loaded):
        model = Accumulates()
        for _ in range(2):
            x, mine = torch.randn(4, 3), torch.randn(4, 3)
            theirs = mine.clone()
            same(each(x, mine), model(x, theirs))
            same(mine, theirs)
            same(each.state["total"], model.total)


def test_without_fallback_the_operator_is_named() -> None:
    """Not the form that PyTorch gives it."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"tkc_writes\.add\.default.*(?s:.)*fallback=True"):
        compiled(_made, torch.randn(3, 3), fallback=False)
