"""Inputs that share memory: read as what they are, and refused where the model updates one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tkc.runtime.overlaps import MovedOverlapCheck, OverlapCheck


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
        x, y = pair
        elsewhere = torch.randn(4, 6)
        both_move, one_moves = MovedOverlapCheck(check, {}), MovedOverlapCheck(check, {0: x})
        both_move({0: elsewhere, 1: y})
        one_moves({1: elsewhere})
        for checked in (partial(check, pair), partial(both_move, {0: x}), partial(one_moves, {1: y})):
            if overlaps:
                with pytest.raises(tkc.InputError, match=f"updates '{updated}'"):
                    checked()
            else:
                checked()


def test_one_of_many_that_moves() -> None:
    """It is compared with all that stay, the long ones that begin far before it among them."""
    memory = torch.zeros(100)
    bound = {0: memory[:60], 1: memory[60:70], 2: memory[70:72], 3: memory[80:90]}
    check = MovedOverlapCheck(OverlapCheck([f"x{i}" for i in range(6)], ["x4", "x5"]), bound)
    check({4: memory[72:80], 5: memory[90:]})
    check({4: memory[:0], 5: memory[72:80]})
    check({4: memory[90:], 5: memory[72:80]})
    check({4: memory[72:80], 5: memory[90:]})  # they have changed places
    check({5: memory[72:80], 4: memory[90:]})
    for moved in (memory[59:60], memory[10:11], memory[65:75], memory[79:81], memory[89:], memory[72:80]):
        with pytest.raises(tkc.InputError, match=r"updates 'x[45]'"):
            check({4: moved})
