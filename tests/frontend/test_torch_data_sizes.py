"""Operators on tensors of several sizes that data decides, at counts of none, some and all, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import tkc
from tests.frontend.whole_models import called, compiled, same

H, EXPERTS = 6, 4
_GENERATOR = torch.Generator().manual_seed(0)
UP, DOWN = (torch.randn(EXPERTS, H, H, generator=_GENERATOR) for _ in range(2))
Function = Callable[[torch.Tensor], Any]


def _expert(x: torch.Tensor) -> torch.Tensor:
    return x[:, :EXPERTS].argmax(1)


def _counts(chosen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(chosen.shape[0], EXPERTS, dtype=torch.long).scatter(1, chosen[:, None], 1).sum(0)


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x[:, 0] > 0], x[x[:, 1] < 0]


def _joined(x: torch.Tensor) -> Any:
    y = torch.cat([*_parts(x), x[x[:, 2] > 1] * 2])
    gate, up = y.chunk(2, -1)
    return y.exp(), y @ UP[0], F.silu(gate) * up, F.layer_norm(y, (H,)), y.sum(0), y.softmax(0), y.T + 1, y.flip(0)


def _paired(x: torch.Tensor) -> Any:
    a, b = _parts(x)
    distance = (a[:, None] - b[None]).abs().sum(-1)
    scores = a @ b.T
    return distance, (distance < 3).float().sum(1), scores.softmax(-1) @ b, F.linear(a, b), scores @ b[:, 0], a.T @ a


def _added(x: torch.Tensor) -> Any:
    a, b = _parts(x)
    more = torch.addmm(torch.ones(1), a, b.T), torch.baddbmm(torch.ones(1, 1, 1), a[None], b.T[None])
    return more, torch.mv(a, b.sum(0)), torch.matmul(a[None], b.T.expand(2, -1, -1))


def _found(x: torch.Tensor) -> Any:
    rows, columns = torch.nonzero(x > 0, as_tuple=True)
    y, z = x[x > 0], x[rows, columns]
    of_both = torch.hypot(y, z), torch.lerp(y, z * 2, 0.3), torch.where(y > 1, z, -y), torch.copysign(y, z), y - z
    return of_both, torch.stack([y, z]), torch.zeros_like(x).index_put((rows, columns), z), rows[:, None] + rows


def _experts_split(x: torch.Tensor) -> Any:
    """As JetMoe and GraniteMoe have them: rows in order of their experts, split by their counts."""
    chosen = _expert(x)
    order, counts = chosen.argsort(stable=True), _counts(chosen).tolist()
    y = x[order]
    for weights in (UP, DOWN):
        y = torch.cat([part @ weight for part, weight in zip(y.split(counts), weights, strict=True)]).relu()
    return torch.zeros_like(x).index_add(0, order, y * x[order, 0, None]) + 1


def _experts_masked(x: torch.Tensor) -> Any:
    """As Mixtral has them: the rows of each expert found, and added back."""
    weights, chosen = x[:, :EXPERTS].softmax(-1).topk(2)
    result = torch.zeros_like(x)
    for expert in range(EXPERTS):
        rank, row = torch.where(F.one_hot(chosen, EXPERTS)[..., expert].T)
        result.index_add_(0, row, (x[row] @ UP[expert]).relu() @ DOWN[expert] * weights[row, rank, None])
    return result


def _experts_written(x: torch.Tensor) -> Any:
    chosen, result = _expert(x), torch.zeros_like(x)
    rows = [torch.nonzero(chosen == expert).squeeze(1) for expert in range(EXPERTS)]
    for row, weight in zip(rows, UP, strict=True):
        result[row] = x[row] @ weight
    every = torch.cat(rows)
    return result, torch.zeros_like(x).index_copy(0, every, x[every] * 2), x[every][every.argsort()]


def _repeated(x: torch.Tensor) -> Any:
    counts = (x * 2).abs().long()[:, 0]
    rows = torch.repeat_interleave(x, counts, 0)
    back = torch.zeros_like(x).index_add(0, torch.repeat_interleave(counts.int()), rows)
    return torch.cat([rows, x[x[:, 1] > 0]]) * 2, back, torch.repeat_interleave(UP[:, 0], _counts(_expert(x)), 0)


def _histograms(x: torch.Tensor) -> Any:
    chosen = _expert(x)
    weighted = torch.bincount((x[:, 0] > 0).long() * 3, weights=x[:, 0].contiguous())
    return torch.bincount(chosen) + 1, weighted, torch.bincount(chosen[x[:, 0] > 0].int(), minlength=9)


def _nested(x: torch.Tensor) -> Any:
    a = x[x[:, 0] > 0]
    b = a[a[:, 1] > 0]
    half = (x[:, 2] > 0).sum().item()
    torch._check(half <= x.shape[0])
    padded = torch.zeros(x.shape[0] * 3, H)
    every = torch.cat([a, b, x[:half]])
    padded[: every.shape[0]] = every
    return a.sum(0), b @ UP[0], every.repeat(2, 1), F.pad(every, (0, 0, 1, 2)), padded, x[:, 0].topk(half)[0]


_FUNCTIONS: dict[str, Function] = {
    "joined": _joined,
    "paired": _paired,
    "added to products": _added,
    "found twice": _found,
    "experts in parts": _experts_split,
    "experts by masks": _experts_masked,
    "experts written": _experts_written,
    "repeated": _repeated,
    "histograms": _histograms,
    "nested": _nested,
}


def _calls(rows: int) -> Iterator[torch.Tensor]:
    """Rows of which each selection has some, all, and none."""
    x = torch.randn(rows, H, generator=torch.Generator().manual_seed(rows))
    yield x
    yield x.abs() + 0.01
    yield -x.abs() - 0.01
    yield x * torch.tensor([-1.0, 1, 1, 1, 1, 1]).where(x[:1] > 0, 1.0)
    yield x.index_fill(1, torch.tensor([2]), 9.0)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_each_count_is_right(name: str) -> None:
    """Of one compilation, which calls nothing in PyTorch."""
    function = _FUNCTIONS[name]
    exe = compiled(function, torch.randn(7, H), dynamic_shapes=(({0: Dim("rows", min=2, max=999)},),), fallback=False)
    assert not called(exe)
    for rows in (7, 2, 40):
        for x in _calls(rows):
            same(exe(x), function(x), 2e-5)


def test_what_is_checked_keeps_its_memory() -> None:
    """A check returns the tensor that it is handed. Memory planning gave the tensor's memory away at the check: sums
    were written over what they are sums of."""

    def function(x: torch.Tensor, counts: torch.Tensor, places: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        first, second = x.split(counts.tolist())
        return (
            torch.zeros(x.shape).index_add(0, places, torch.cat([first * 2, second * 3]) * factors[:, None]) + UP[0, 0]
        )

    places, factors = torch.tensor([2, 0, 1, 1, 4]), torch.randn(5)
    exe = compiled(function, torch.randn(5, H), torch.tensor([2, 3]), places, factors)
    for first in (0, 2, 5):
        inputs = torch.randn(5, H), torch.tensor([first, 5 - first]), places, factors
        same(exe(*inputs), function(*inputs), 1e-6)


class _Counting(torch.nn.Module):
    """Returns what its buffer was before it adds to it, and asserts something of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum before ``x``, and the first numbers of the sum with it."""
        torch._check(n.item() < 3)
        before = self.total.clone()
        self.total.add_(x)
        return before.view(8, 4), self.total[:, 0] + 1


def test_what_is_checked_is_not_overwritten() -> None:
    """A result that is checked, and lies in the memory of state, is what the state was: it changed with the state."""
    exe, model, kept = tkc.compile(_Counting(), (torch.ones(4, 8), torch.tensor(1)), target="cpu"), _Counting(), []
    for n in range(3):
        inputs = torch.randn(4, 8), torch.tensor(n)
        kept.append((exe(*inputs), model(*inputs)))
    for found, expected in kept:
        same(found, expected, 1e-6)


_PLACES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "row": lambda x, n: x[n] * 1,
    "row before": lambda x, n: x[n - 1] * 1,
    "from": lambda x, n: x[n:] * 1,
    "up to": lambda x, n: x[:n] * 1,
    "from the end": lambda x, n: x[-n:] * 1,
    "two": lambda x, n: x[n : n + 2] * 1,
    "each second": lambda x, n: x[n::2] * 1,
    "each third up to": lambda x, n: x[:n:3] * 1,
    "narrowed": lambda x, n: x.narrow(0, n, 2) * 1,
    "padded or cut": lambda x, n: F.pad(x, (0, 0, n, 1)),
    "rolled": lambda x, n: x.roll(n, 0),
    "magnitude": lambda x, n: torch.arange(abs(n)) + x.shape[0],
}


def _result(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (IndexError, RuntimeError):
        return None


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", _PLACES)
def test_a_place_of_data_counts_from_either_end(name: str) -> None:
    """Compiled code took every number that a model reads for 0 or more: it read in front of the tensor. What is out of
    it is an error where it is one in PyTorch."""
    x, function = torch.randn(7, 3), _PLACES[name]
    exe = compiled(lambda x, n: function(x, n.item()), x, torch.tensor(2), fallback=False)
    for n in range(-9, 10):
        expected = _result(lambda n=n: function(x, n))  # type: ignore[misc]  # mypy knows no default here
        if expected is None:
            with pytest.raises(tkc.InputError):
                exe(x, torch.tensor(n))
        else:
            same(exe(x, torch.tensor(n)), expected, 0)


@pytest.mark.parametrize("name", ["repeated", "counted"])
def test_negative_counts_are_an_error(name: str) -> None:
    """As in PyTorch."""
    function = {"repeated": torch.repeat_interleave, "counted": torch.bincount}[name]
    exe = compiled(lambda x: function(x) + 1, torch.tensor([1, 2, 0]), fallback=False)
    same(exe(torch.tensor([3, 0, 1])), function(torch.tensor([3, 0, 1])) + 1, 0)
    with pytest.raises(tkc.InputError, match=r"would be negative: -2"):
        exe(torch.tensor([3, -2, 1]))


@pytest.mark.parametrize("rows", [2, 5])
def test_sizes_of_which_no_call_has_both_are_refused(rows: int) -> None:
    """PyTorch's export asserts that parts that are added have equal sizes, and that the first has one row.

    The other has ``rows``: each assertion holds in some call, and no call has both.
    """

    class Parts(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, one: torch.Tensor) -> Any:
            first, rest = (p.clone() for p in x.split(torch.stack([mask.sum(), (~mask).sum()]).tolist()))
            return torch.addcmul(rest, first, first), first.index_add(0, torch.nonzero(one).squeeze(1), first[one])

    args = torch.ones(rows + 1, 3), torch.arange(rows + 1) < 1, torch.tensor([True])
    with pytest.raises(tkc.UnsupportedModelError, match=r"exported for .* holds in no call"):
        tkc.compile(Parts(), args)
