"""Small models that change their buffers or their inputs, in the ways that caches, counters and statistics do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """``step(model, *inputs)`` is the forward pass of a model with ``buffers``; ``inputs()`` are random ones."""

    name: str
    buffers: Callable[[], dict[str, torch.Tensor]]
    step: Callable[..., Any]
    inputs: Callable[[], Inputs]

    def model(self) -> nn.Module:
        """The model, with the same initial state each time."""
        torch.manual_seed(0)
        return Stateful(self)


class Stateful(nn.Module):
    """A model with a case's buffers and forward pass."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.step = case.step
        for name, value in case.buffers().items():
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """As the case says."""
        return self.step(self, *inputs)


class Buffers(Protocol):
    """What a step reads and writes of its model: of these, the buffers that its case has."""

    cache: torch.Tensor
    count: torch.Tensor
    first: torch.Tensor
    flag: torch.Tensor
    place: torch.Tensor
    second: torch.Tensor
    total: torch.Tensor


def _rows(*shape: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"cache": torch.randn(*shape)}


def _places(count: int) -> torch.Tensor:
    """Different rows of six, in no order."""
    return torch.randperm(6)[:count]


def counted(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Counts its calls."""
    m.count += 1
    return x * m.count


def indexed(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes rows of an inner axis."""
    m.cache.index_copy_(1, places, x)
    return m.cache.sum(-1)


def assigned(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes rows behind a full slice, at positions that may be negative."""
    m.cache[:, places.to(torch.int32)] = x
    return m.cache.sum(-1)


def assigned_each(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes another row for each sequence."""
    m.cache[torch.arange(3), :, places] = x
    return m.cache.sum(-1)


def scattered(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes elements, and adds to a sum."""
    m.cache.scatter_(0, places[:, None].expand(3, 4), x)
    m.total.index_add_(0, places, x[:, 0])
    return m.cache.sum(0) + m.total.sum()


def sliced(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Writes into views of views."""
    m.cache[1, 2:4] = x
    m.cache[0, -1] = x[0]
    m.cache[:, 0, 1:3] = 7.0
    return m.cache.sum((0, 2))


def shifted(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Moves all rows by one."""
    m.cache.copy_(torch.cat([m.cache[1:], x]))
    return m.cache * 2


def masked(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Writes where a condition holds."""
    m.cache[m.cache > 0] = 1.5
    m.cache.masked_fill_(x > 0, 0)
    return m.cache.sum(-1)


def read_before(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Needs the old rows only before it writes."""
    scores = x @ m.cache.T
    m.cache.index_copy_(0, places, x + scores.sum())
    return scores


def read_after(m: Buffers, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Needs the old rows when new ones are written."""
    before = m.cache.clone()
    m.cache.index_copy_(0, places, x)
    return before, m.cache.sum(0), (before * m.cache).sum()


def exchanged(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Each buffer becomes the other."""
    before = m.first.clone()
    m.first.copy_(m.second)
    m.second.copy_(before)
    return x + m.first


def returned(m: Buffers, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns a buffer that it computes anew, a copy of it and a view."""
    m.cache.copy_(x * 2)
    return m.cache, m.cache.clone(), m.cache.view(2, 2)


def positioned(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Writes the row that another buffer names."""
    m.cache.index_copy_(0, m.place, x)
    m.place.add_(1)
    return m.cache.sum()


def flagged(m: Buffers, x: torch.Tensor) -> torch.Tensor:
    """Writes a buffer that it never reads."""
    m.flag.fill_(2)
    return x


def in_input(_: Any, x: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> dict[str, torch.Tensor]:
    """Writes rows of an input, which it returns."""
    cache.index_copy_(1, places, x)
    return {"cache": cache, "sums": cache.sum(-1)}


def _row() -> Inputs:
    return (torch.randn(1, 4),)


CASES = (
    Case("counted", lambda: {"count": torch.tensor(0)}, counted, lambda: (torch.randn(3),)),
    Case("indexed", _rows(3, 6, 4), indexed, lambda: (torch.randn(3, 2, 4), _places(2))),
    Case("assigned", _rows(3, 6, 4), assigned, lambda: (torch.randn(3, 2, 4), _places(2) - 6)),
    Case("assigned_each", _rows(3, 2, 6, 4), assigned_each, lambda: (torch.randn(3, 2, 4), torch.randint(0, 6, (3,)))),
    Case(
        "scattered",
        lambda: {"cache": torch.randn(6, 4), "total": torch.zeros(6)},
        scattered,
        lambda: (torch.randn(3, 4), _places(3)),
    ),
    Case("sliced", _rows(2, 6, 4), sliced, lambda: (torch.randn(2, 4),)),
    Case("shifted", _rows(6, 4), shifted, _row),
    Case("masked", _rows(6, 4), masked, lambda: (torch.randn(6, 4),)),
    Case("read_before", _rows(6, 4), read_before, lambda: (torch.randn(2, 4), _places(2))),
    Case("read_after", _rows(6, 4), read_after, lambda: (torch.randn(2, 4), _places(2))),
    Case(
        "exchanged",
        lambda: {"first": torch.randn(4), "second": torch.randn(4)},
        exchanged,
        lambda: (torch.randn(4),),
    ),
    Case("returned", lambda: {"cache": torch.randn(4)}, returned, lambda: (torch.randn(4),)),
    Case("positioned", lambda: {"cache": torch.randn(6, 4), "place": torch.tensor([0])}, positioned, _row),
    Case("flagged", lambda: {"flag": torch.zeros(3)}, flagged, lambda: (torch.randn(3),)),
    Case("in_input", dict, in_input, lambda: (torch.randn(3, 2, 4), torch.randn(3, 6, 4), _places(2))),
)
BY_NAME = {case.name: case for case in CASES}
