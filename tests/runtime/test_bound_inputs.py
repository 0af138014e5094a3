"""Inputs of an executable that are bound: looked at once, while all else is checked in each call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import tkc


class _Scaled(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """``x @ weight + shift``."""
        return x @ weight + shift


class _Added(nn.Module):
    def forward(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The sum of ``total``, to which ``x`` is added."""
        total.add_(x)
        return total.sum()


@pytest.fixture(scope="module")
def scaled() -> tkc.Executable:
    """With any number of rows, and as many columns of ``x`` as ``weight`` has rows."""
    rows, inner = Dim("rows", min=1, max=100), Dim("inner", min=2, max=100)
    shapes = {"x": {0: rows, 1: inner}, "weight": {0: inner}, "shift": {}}
    given = torch.ones(3, 4), torch.ones(4, 8), torch.ones(8)
    return tkc.compile(export(_Scaled(), given, dynamic_shapes=shapes))


def test_what_is_written_into_bound_inputs_is_seen(scaled: tkc.Executable) -> None:
    """And others may have other sizes."""
    x, weight, shift = torch.randn(3, 4), torch.randn(4, 8), torch.randn(8)
    bound = scaled.bind([x, weight, shift], {1, 2})
    assert bound.moving == (0,)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(scaled.call_flat([x, weight, shift], bound), x @ weight + shift)
        weight.mul_(2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(3, 5), "'inner' is"),
        (torch.ones(3, 4, dtype=torch.float64), "has dtype float64"),
        (torch.ones(101, 4), "compiled for at least"),
    ],
)
def test_moving_inputs_are_checked(scaled: tkc.Executable, x: torch.Tensor, message: str) -> None:
    """By themselves, and against those that are bound."""
    weight, shift = torch.randn(4, 8), torch.randn(8)
    bound = scaled.bind([torch.ones(3, 4), weight, shift], {1, 2})
    with pytest.raises(tkc.InputError, match=message):
        scaled.call_flat([x, weight, shift], bound)


def test_bound_inputs_are_checked_when_they_are_bound(scaled: tkc.Executable) -> None:
    """A shape that does not fit raises as in a call."""
    with pytest.raises(tkc.InputError, match="axis 0 of input 'shift' is 9"):
        scaled.bind([torch.ones(3, 4), torch.ones(4, 8), torch.ones(9)], {1, 2})


@pytest.mark.parametrize(
    "weight",
    [torch.randn(8, 4).t(), torch.randn(33)[1:].view(4, 8), torch.randn(4, 8).neg().contiguous().neg()],
    ids=["transposed", "unaligned", "plain"],
)
def test_copies_are_not_bound(scaled: tkc.Executable, weight: torch.Tensor) -> None:
    """What generated code reads in a copy is read anew in each call."""
    x, shift = torch.randn(3, 4), torch.randn(8)
    bound = scaled.bind([x, weight, shift], {1, 2})
    assert (1 in bound.moving) == (not weight.is_contiguous() or weight.data_ptr() % 64 != 0)
    for _ in range(2):
        torch.testing.assert_close(scaled.call_flat([x, weight, shift], bound), x @ weight + shift)
        weight.mul_(2)


def test_updated_inputs_may_be_bound() -> None:
    """They are written where they are; one that moves and overlaps them is refused."""
    memory, x = torch.zeros(32), torch.ones(16)
    total = memory[:16]
    executable = tkc.compile(export(_Added(), (torch.zeros(16), x)))
    bound = executable.bind([total, x], {0})
    for count in (1, 2):
        assert executable.call_flat([total, x], bound) == 16 * count
        assert torch.equal(total, torch.full((16,), float(count)))
    with pytest.raises(tkc.InputError, match="overlap in memory"):
        executable.call_flat([total, memory[8:24]], bound)
    assert torch.equal(total, torch.full((16,), 2.0))


def test_a_cache_that_moves_is_checked_where_it_moved() -> None:
    """Calls with the cache of the call before look at it no more; others do, whatever is changed of it."""
    executable = tkc.compile(export(_Added(), (torch.zeros(4, 8), torch.ones(4, 8))))
    memory, x = torch.zeros(9, 8), torch.ones(4, 8)
    bound = executable.bind([memory[:4], x], {1})
    for total in (
        memory[:4],
        memory[:4],
        memory[4:8],
        torch.zeros(8, 4).t(),
        memory[:4],
        torch.zeros(33)[1:].view(4, 8),
    ):
        expected = total + 1
        for _ in range(2):
            assert executable.call_flat([total, x], bound) == expected.sum()
            torch.testing.assert_close(total, expected)
            expected = expected + 1
    for refused, message in (
        (x, "overlap in memory"),
        (memory[:8], "axis 0 of input 'total' is 8"),
        (memory[:4].view(torch.int32), "has dtype int32"),
        (memory[0].expand(4, 8), "expanded"),
    ):
        assert executable.call_flat([memory[:4], x], bound) == memory[:4].sum()
        with pytest.raises(tkc.InputError, match=message):
            executable.call_flat([refused, x], bound)


def test_weights_that_are_exchanged_are_used() -> None:
    """What was bound before is bound no more."""
    model, other = nn.Linear(4, 8), nn.Linear(4, 8)
    executable = tkc.compile(export(model, (torch.ones(3, 4),)))
    x = torch.randn(3, 4)
    bound = executable.bind([x], set())
    executable.load_weights(other.state_dict())
    torch.testing.assert_close(executable.call_flat([x], bound), other(x).detach())
