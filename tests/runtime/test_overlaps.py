"""Inputs that share memory: read as what they are, and refused where the model updates one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tkc.runtime.overlaps import OverlapCheck


class Updating(nn.Module):
    """Writes into both inputs, or into neither."""

    def __init__(self, *, updates: bool) -> None:
        super().__init__()
        self.updates = updates

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of both."""
        if self.updates:
            x.mul_(2)
            y.add_(1)
        return x + y * 3


ROWS = ({0: Dim.AUTO}, {0: Dim.AUTO})


def test_examples_that_are_one_tensor() -> None:
    """PyTorch's tracer takes the two inputs for one."""
    model, both = Updating(updates=False), torch.randn(4, 5)
    halves = torch.randn(8, 5)
    for examples in ((both, both), (halves[:4], halves[2:6])):
        compiled = tkc.compile(model, examples, dynamic_shapes=ROWS, target="cpu")
        for x, y in ((both, both), (torch.randn(3, 5), torch.randn(3, 5)), (halves[1:5], halves[:4])):
            torch.testing.assert_close(compiled(x, y), model(x, y))


def test_updates_that_another_input_would_show() -> None:
    """Eager PyTorch sees them; an input that lies beside, or between, is none of these."""
    compiled = tkc.compile(Updating(updates=True), (torch.randn(4, 5), torch.randn(4, 5)), dynamic_shapes=ROWS)
    cache = torch.randn(9, 2, 5)
    for x, y in ((cache[:4, 0], cache[:4, 1]), (cache[:4, 0], cache[4:8, 0]), (cache[:0, 0], cache[:0, 0])):
        found, expected = cache.clone(), cache.clone()
        pairs = [[t.as_strided(v.shape, v.stride(), v.storage_offset()) for v in (x, y)] for t in (found, expected)]
        torch.testing.assert_close(compiled(*pairs[0]), Updating(updates=True)(*pairs[1]))
        torch.testing.assert_close(found, expected)
    for x, y in ((cache[:4, 0], cache[:4, 0]), (cache[:4, 0], cache[3:7, 0]), (cache[:4, 0], cache[2:6, 0])):
        before = cache.clone()
        with pytest.raises(tkc.InputError, match=r"'x' and 'y' overlap in memory, and the model updates"):
            compiled(x, y)
        assert torch.equal(cache, before)


@pytest.mark.parametrize(
    ("of", "overlaps"),
    [
        (lambda t: (t[:, :3], t[:, 3:]), False),
        (lambda t: (t[:, :3], t[:, 2:]), True),
        (lambda t: (t.T, t[1]), True),
        (lambda t: (t[::2], t[1::2]), False),
        (lambda t: (t[0].expand(3, 6), t[0, 5:]), True),
        (lambda t: (t, t.view(torch.int32)), True),
        (lambda t: (t[0], t[1].view(torch.int16)), False),
    ],
)
def test_places(of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], overlaps: bool) -> None:
    """Views of every kind, whichever is updated; of tensors that are only read, no question."""
    pair = of(torch.randn(4, 6))
    OverlapCheck(["x", "y"], [])(pair)
    for updated in ("x", "y"):
        check = OverlapCheck(["x", "y"], [updated])
        if overlaps:
            with pytest.raises(tkc.InputError, match=f"updates '{updated}'"):
                check(pair)
        else:
            check(pair)
