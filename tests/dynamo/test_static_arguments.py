"""Weights among a graph's arguments: bound once, and seen whenever they change."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn

import tkc
from tests.dynamo.comparing import check_same
from tests.dynamo.graphs import Graphs
from tkc.dynamo import backend, static_arguments
from tkc.dynamo.graph import CompiledGraph


class _Layer(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("shift", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return torch.relu(self.linear(x) + self.shift)


def _entries(graph: CompiledGraph) -> list[Any]:
    assert graph._static is not None
    return list(graph._static._entries.values())


def _check(compiled: Any, model: nn.Module, calls: int = 3) -> None:
    with torch.no_grad():
        for _ in range(calls):
            x = torch.randn(5, 8)
            check_same(model(x), compiled(x))


def test_changed_weights_are_seen(graphs: Graphs) -> None:
    """In place, by other memory, by other parameters, by ``load_state_dict``; and what is not aligned."""
    model = _Layer()
    compiled = torch.compile(model, backend=backend.tkc, dynamic=False)
    _check(compiled, model)
    (graph,) = graphs.made
    (entry,) = _entries(graph)
    assert len(entry.bound.moving) == 1
    with torch.no_grad():
        model.linear.weight.mul_(2)
        _check(compiled, model, 1)
        assert _entries(graph) == [entry]
        model.linear.weight.data = torch.randn(8, 8)
        _check(compiled, model)
        model.linear.weight = nn.Parameter(torch.randn(8, 8))
        _check(compiled, model)
        model.shift.add_(1)
        _check(compiled, model, 1)
        model.load_state_dict(_Layer().state_dict())
        _check(compiled, model)
        model.shift.data = torch.randn(9)[1:]
        _check(compiled, model)
    (entry,) = _entries(graph)
    assert len(entry.bound.moving) == 2
    model.linear.weight.data = torch.randn(8, 8).t()
    _check(compiled, model)
    assert len(graphs.made) == 2


def test_one_graph_of_several_layers(graphs: Graphs) -> None:
    """Each has an entry, which goes with it."""
    layers = [_Layer() for _ in range(3)]
    for layer in layers:
        layer.compile(backend=backend.tkc, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            for layer in layers:
                x = torch.randn(5, 8)
                check_same(layer.forward(x), layer(x))
    (graph,) = graphs.made
    assert len(_entries(graph)) == 3
    del layers[1], layer
    gc.collect()
    assert len(_entries(graph)) == 2


def test_tensors_that_are_new_in_each_call_are_not_bound(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some that were bound for nothing."""
    monkeypatch.setattr(static_arguments, "MOST_WASTED", 2)
    model = _Layer()
    compiled = torch.compile(model, backend=backend.tkc, dynamic=False)
    _check(compiled, model, 2)
    for _ in range(5):
        model.linear.weight.data = torch.randn(8, 8)
        _check(compiled, model, 1)
    assert graphs.made[0]._static is not None
    assert graphs.made[0]._static._wasted == 3


def test_caches_at_an_address_that_stays(graphs: Graphs) -> None:
    """They are bound, too, and written where they are."""

    def step(cache: torch.Tensor, place: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, place, new)
        return cache.sum(0)

    compiled = torch.compile(step, backend=backend.tkc, dynamic=False)
    cache, expected = torch.zeros(16, 8), torch.zeros(16, 8)
    torch._dynamo.mark_static_address(cache)
    with torch.no_grad():
        for place in range(4):
            row, new = torch.tensor([place]), torch.randn(1, 8)
            check_same(step(expected, row, new), compiled(cache, row, new))
            assert torch.equal(cache, expected)
    (entry,) = _entries(graphs.made[0])
    assert entry.used and len(entry.bound.moving) == 2


def test_indices_in_a_buffer_are_checked_in_each_call() -> None:
    """What is written into it is seen."""

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([1, 2, 3]))
            self.embedding = nn.Embedding(10, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embedding(self.places) + x

    model = Looked()
    compiled = torch.compile(model, backend=backend.tkc, dynamic=False)
    with torch.no_grad():
        for last in (3, 3, 3, 9):
            model.places[2] = last
            check_same(model(torch.ones(3, 8)), compiled(torch.ones(3, 8)))
        model.places[2] = 10
        with pytest.raises(tkc.InputError, match="holds the index 10"):
            compiled(torch.ones(3, 8))


def test_sizes_may_change() -> None:
    """Those of the inputs beside the weights."""
    model = _Layer()
    compiled = torch.compile(model, backend=backend.tkc, dynamic=True)
    with torch.no_grad():
        for rows in (3, 3, 3, 4, 0, 7):
            x = torch.randn(rows, 8)
            check_same(model(x), compiled(x))


def test_threads_share_what_is_bound() -> None:
    """Calls run at once."""
    model = _Layer()
    compiled = torch.compile(model, backend=backend.tkc, dynamic=False)
    _check(compiled, model, 1)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _check(compiled, model, 30)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
