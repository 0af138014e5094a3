"""Inputs that a compiled graph changes: written where they are, as eager leaves them, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tkc
from tests.dynamo.comparing import check_same
from tests.dynamo.graphs import Graphs
from tkc.dynamo import backend, updates
from tkc.errors import UnsupportedModelError

Arguments = Callable[[], list[torch.Tensor]]


class _Moved(TorchDispatchMode):
    """Counts the elements that PyTorch itself copies."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.clone.default):
            self.elements += args[0].numel()
        return func(*args, **(kwargs or {}))


def _step(keys: torch.Tensor, place: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    keys.index_copy_(1, place, new)
    return keys[:, :3].sum(1)


def test_a_cache_is_written_where_it_is(graphs: Graphs) -> None:
    """One row of it: nothing of its size is allocated by compiled code, nor copied by PyTorch."""
    cache, expected = torch.zeros(2, 2048, 64), torch.zeros(2, 2048, 64)
    compiled, address = torch.compile(_step, backend=backend.tkc, dynamic=False), cache.data_ptr()
    with torch.no_grad():
        for place in (0, 2, 2047):
            row, new = torch.tensor([place]), torch.randn(2, 1, 64)
            check_same(_step(expected, row, new), compiled(cache, row, new))
            assert torch.equal(cache, expected) and cache.data_ptr() == address
    (graph,) = graphs.made
    executable = graph.executable
    assert executable is not None
    assert len(executable.signature.updated_inputs) == 1
    assert [spec.shape for spec in executable.signature.outputs] == [(2, 64)]
    assert executable.activation_bytes() < cache.nbytes / 16
    with _Moved() as moved, torch.no_grad():
        graph(list(graphs.arguments))
    assert moved.elements == 0


def _returned(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def _added(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def _both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    y.mul_(2)
    return x, y, x + y


def _exchanged(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    old = x.clone()
    return x.copy_(y), y.copy_(old)


def _of_one_value(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value = x + y
    x.copy_(value)
    y.copy_(value)
    return value.sum()


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(x.t() + 1).sum()


def _read_before_and_behind(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(), x.add_(1).view(-1), x.sum()


def _of_another_dtype(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.copy_(y) + 1


def _drawn(x: torch.Tensor) -> torch.Tensor:
    return x.uniform_() + torch.rand(2)


def _same(x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x]


ARGUMENTS: list[Any] = [
    pytest.param(_added, lambda: [torch.zeros(3)], 1, id="plain"),
    pytest.param(_added, lambda: [torch.tensor(0)], 1, id="number"),
    pytest.param(_added, lambda: [torch.zeros(0, 3)], 1, id="empty"),
    pytest.param(_added, lambda: [torch.zeros(3, requires_grad=True)], 1, id="parameter"),
    pytest.param(_added, lambda: [torch.zeros(40)[1:20]], 1, id="not aligned"),
    pytest.param(_added, lambda: [torch.zeros(3, 4).t()], 0, id="transposed"),
    pytest.param(_added, lambda: [torch.zeros(3, 4)[:, 1:3]], 0, id="slice"),
    pytest.param(_added, lambda: [torch.ones(3, dtype=torch.complex64).conj()], 0, id="conjugate"),
    pytest.param(_returned, lambda: [torch.zeros(3, 4)], 1, id="returned"),
    pytest.param(_read_before_and_behind, lambda: [torch.ones(3, 4)], 1, id="a view returned"),
    pytest.param(_both, lambda: _same(torch.ones(3, 4)), 1, id="given twice"),
    pytest.param(_both, lambda: list(torch.ones(4, 4).split(2)), 2, id="two parts"),
    pytest.param(_both, lambda: (lambda z: [z[0:2], z[1:3]])(torch.ones(3, 4)), 1, id="overlapping parts"),
    pytest.param(_both, lambda: list(torch.ones(4, 2).unbind(1)), 1, id="interleaved parts"),
    pytest.param(_exchanged, lambda: [torch.ones(3), torch.zeros(3)], 2, id="exchanged"),
    pytest.param(_of_one_value, lambda: [torch.ones(3), torch.ones(3)], 2, id="one value for two"),
    pytest.param(_turned, lambda: [torch.arange(1089.0).view(33, 33)], 1, id="reads all of itself"),
    pytest.param(_of_another_dtype, lambda: [torch.ones(4, 3), torch.zeros(3, dtype=torch.float64)], 1, id="converted"),
    pytest.param(_drawn, lambda: [torch.zeros(2)], 1, id="random"),
]


@pytest.mark.daily(4)
@pytest.mark.parametrize(("function", "arguments", "in_place"), ARGUMENTS)
def test_inputs_end_as_in_eager(
    graphs: Graphs, function: Callable[..., Any], arguments: Arguments, in_place: int
) -> None:
    """After three calls, with the memory that they are parts of; so many of them are written by compiled code."""
    given, expected = arguments(), arguments()
    compiled = torch.compile(function, backend=backend.tkc, dynamic=False, fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            results = function(*expected)
            torch.manual_seed(seed)
            check_same(results, compiled(*given))
            check_same([_whole(each) for each in expected], [_whole(each) for each in given])
    assert [each._version > 0 for each in given] == [each._version > 0 for each in expected]
    names = [name for each in graphs.made if each.executable for name in each.executable.signature.updated_inputs]
    assert len(names) == in_place


def _of_sizes_that_guards_relate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(y[1:].t())
    return x + y.sum()


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(_both, lambda: (lambda z: [z[1:5], z[2:6]])(torch.ones(9, 4)), id="overlapping parts"),
        pytest.param(
            _of_sizes_that_guards_relate, lambda: [torch.ones(4, 3), torch.ones(4, 4)], id="sizes written otherwise"
        ),
    ],
)
def test_inputs_of_symbolic_sizes(function: Callable[..., Any], arguments: Arguments) -> None:
    """As in eager, too."""
    given, expected = arguments(), arguments()
    compiled = torch.compile(function, backend=backend.tkc, dynamic=True)
    with torch.no_grad():
        check_same(function(*expected), compiled(*given))
    check_same([_whole(each) for each in expected], [_whole(each) for each in given])


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def test_results_are_not_the_inputs_memory() -> None:
    """A graph that returns what it also writes into an input returns a tensor of its own."""

    def function(x: torch.Tensor) -> torch.Tensor:
        new = x * 2
        x.copy_(new)
        return new

    x = torch.ones(64)
    with torch.no_grad():
        found = torch.compile(function, backend=backend.tkc)(x)
        x.zero_()
    check_same(torch.full((64,), 2.0), found)


def test_an_expanded_input_raises_as_in_eager() -> None:
    """Several of its elements are one."""
    x = torch.ones(1, 4).expand(3, 4)
    with torch.no_grad(), pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.compile(_added, backend=backend.tkc)(x)
    assert torch.equal(x, torch.ones(3, 4))


def test_inputs_that_came_to_overlap_are_refused() -> None:
    """PyTorch has no guard for it; what is refused has changed nothing."""
    compiled, memory = torch.compile(_both, backend=backend.tkc, dynamic=False), torch.ones(4, 4)
    with torch.no_grad():
        compiled(*memory.clone().split(2))
        with pytest.raises(tkc.InputError, match="overlap in memory"):
            compiled(memory[0:2], memory[1:3])
    assert torch.equal(memory, torch.ones(4, 4))


def test_a_refused_graph_updates_its_inputs(warned: list[str]) -> None:
    """It runs in PyTorch."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.as_strided(x, (2, 2), (2, 1)) + 1

    x, expected = torch.zeros(4, 4).t(), torch.zeros(4, 4).t()
    with torch.no_grad():
        check_same(function(expected), torch.compile(function, backend=backend.tkc)(x))
    assert torch.equal(x, expected) and len(warned) == 1


@pytest.mark.daily(2)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_running_statistics(training: bool, grad: bool) -> None:
    """Those of a batch norm, with and without gradients; what the backward graph reads stays as it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()).train(training)
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend=backend.tkc, dynamic=False)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            x = torch.randn(5, 4)
            expected, found = model(x), compiled(x)
            check_same(expected.detach(), found.detach())
            if grad:
                expected.sum().backward()
                found.sum().backward()
    check_same(model.state_dict(), other.state_dict())
    check_same([each.grad for each in model.parameters()], [each.grad for each in other.parameters()], 1e-4)


def _graph(build: Callable[[fx.Graph, fx.Node], Any]) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(3)
    graph.output((build(graph, x),))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(3)
    return graph


def test_graphs_that_write_otherwise_are_refused() -> None:
    """Twice, before a read, or by another operator: what AOTAutograd does not make."""
    add, write = torch.ops.aten.add.Tensor, torch.ops.aten.copy_.default

    def twice(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_function(add, (x, 1))
        graph.call_function(write, (x, value))
        return graph.call_function(write, (x, value))

    def before_a_read(graph: fx.Graph, x: fx.Node) -> fx.Node:
        graph.call_function(write, (x, graph.call_function(add, (x, 1))))
        return graph.call_function(add, (x, 1))

    def by_another(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))

    for build, message in ((twice, "x, an input, after"), (before_a_read, "x, an input, after"), (by_another, "add_")):
        with pytest.raises(UnsupportedModelError, match=message):
            updates.take_updates(_graph(build), torch.device("cpu"), in_place=True)


def test_graphs_that_update_other_inputs_are_other_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store tells them apart, though they compute the same nodes."""
    keys: set[str] = set()
    stored = backend.stored

    def noted(exported: Any, target: Any, options: Any, make: Any) -> Any:
        from tkc.dynamo.store import graph_key

        keys.add(graph_key(exported, target, options))
        return stored(exported, target, options, make)

    monkeypatch.setattr(backend, "stored", noted)

    def first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.copy_(x + y)

    def second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.copy_(x + y)

    for function in (first, second):
        torch._dynamo.reset()
        given, expected = [torch.ones(3), torch.ones(3)], [torch.ones(3), torch.ones(3)]
        with torch.no_grad():
            check_same(function(*expected), torch.compile(function, backend=backend.tkc)(*given))
        check_same(expected, given)
    assert len(keys) == 2
