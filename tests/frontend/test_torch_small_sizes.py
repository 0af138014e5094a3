"""Sizes of 1 and 0, which PyTorch's tracer does not think of: right, or refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import tkc
from tests.frontend.whole_models import Model, compiled, same
from tkc.frontend.torch import small_sizes

Function = Callable[[torch.Tensor], Any]

FUNCTIONS: dict[str, tuple[Function, int]] = {
    "the last two": (lambda x: x[:, -2:] * 2, 2),
    "the first two": (lambda x: x[:, :2] * 2, 2),
    "one and the rest": (lambda x: torch.cat([x[:, 1:], x[:, :1]], 1), 1),
    "a window": (lambda x: x.narrow(1, 0, 2) + 1, 2),
    "the larger": (lambda x: x.topk(1)[0] + 1, 1),
    "the last": (lambda x: x[:, -1] * 2, 1),
    "squeezed": (lambda x: x.squeeze(1).sum() + x, 2),
    "sums": (lambda x: x.sum(1) * 2, 0),
    "a product": (lambda x: x @ x.T + x.mean(), 0),
    "joined": (lambda x: torch.cat([x, x + 1], 1).softmax(1), 0),
    "a running sum": (lambda x: x.cumsum(1) - x, 0),
    "normalized": (lambda x: F.layer_norm(x, (4,)), 0),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("named", [True, False], ids=["named", "auto"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_sizes_are_right_or_refused(name: str, named: bool) -> None:
    """``least`` is the smallest size that the formulas of PyTorch's tracer are right for."""
    function, least = FUNCTIONS[name]
    axis, shape = (0, (6, 4)) if name == "normalized" else (1, (3, 6))
    size = Dim("n", min=0, max=64) if named else Dim.AUTO
    executable = compiled(function, torch.randn(shape), dynamic_shapes=(({axis: size},),))
    assert next(iter(executable.signature.sizes.values())).minimum == least
    for count in (0, 1, 3, 7):  # of 2 elements PyTorch may think apart, and say so
        x = torch.randn([count if i == axis else other for i, other in enumerate(shape)])
        if count < least:
            with pytest.raises(tkc.InputError, match=f"is {count}; the model was compiled for at least {least}"):
                executable(x)
        else:
            same(executable(x), function(x))


@pytest.mark.daily(1)
def test_a_size_that_is_a_quotient_of_others() -> None:
    """At 0 the formula of an input's size has no value."""

    def function(x: torch.Tensor, y: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        rows = y.reshape(-1, x.shape[0], 1)
        column = rows.select(0, -1)
        return column.index_put((chosen,), column[chosen] * 2) + (rows + y)

    size = Dim("n", min=1, max=64)
    inputs = torch.randn(5), torch.randn(5, 1), torch.tensor([True, False, True, True, False])
    executable = compiled(function, *inputs, dynamic_shapes=(({0: size}, {0: size}, {0: size}),))
    for count in (2, 3, 7):
        x, y, chosen = torch.randn(count), torch.randn(count, 1), torch.arange(count) % 2 == 0
        same(executable(x, y, chosen), function(x, y, chosen))
    with contextlib.suppress(tkc.InputError):  # PyTorch's export excludes 1
        x, y, chosen = torch.randn(1), torch.randn(1, 1), torch.tensor([True])
        same(executable(x, y, chosen), function(x, y, chosen))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.new_zeros((x.shape[0] - 2) % 3 + 1), x * 2),
        lambda x: x.repeat((x.shape[0] - 5) % 4 + 1, 1) + 1,
        lambda x: F.pad(x, (0, (x.shape[0] - 4) % 8)),
    ],
)
def test_remainders_of_negative_numbers(function: Function) -> None:
    """PyTorch's formulas end in an assertion there: right, or refused, as where the remainder is 0."""
    executable, right = compiled(function, torch.randn(9, 3), dynamic_shapes=(({0: Dim.AUTO},),)), set()
    for count in range(1, 20):
        x = torch.randn(count, 3)
        with contextlib.suppress(tkc.InputError):
            same(executable(x), function(x))
            right.add(count)
    assert {7, 9, 15, 19} <= right


def test_a_program_of_fixed_sizes_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to find out, and running a deep model takes seconds."""
    run: list[object] = []
    monkeypatch.setattr(small_sizes, "_holds", lambda program, sizes: bool(run.append(sizes)) or True)
    x = torch.randn(3, 6)
    same(compiled(FUNCTIONS["sums"][0], x)(x), x.sum(1) * 2)
    assert not run
    compiled(FUNCTIONS["sums"][0], x, dynamic_shapes=(({1: Dim("n", min=0)},),))
    assert run


def test_each_size_is_tried_by_itself() -> None:
    """A batch of one is right where a row of one is not."""
    shapes = (({0: Dim("batch", min=0), 1: Dim("n", min=0)},),)
    executable = compiled(lambda x: x[:, -2:] * x.mean(), torch.randn(3, 6), dynamic_shapes=shapes)
    assert {name: bounds.minimum for name, bounds in executable.signature.sizes.items()} == {"batch": 0, "n": 2}


def test_what_the_data_decides_is_not_judged() -> None:
    """Nor what follows from it."""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        return torch.cat([rows * 2, x]).sum(0) + rows.shape[0]

    program = torch.export.export(Model(chosen), (torch.randn(5, 4),), dynamic_shapes=(({0: Dim("n", min=0)},),))
    executable = tkc.compile(program, database=False)
    assert executable.signature.sizes["n"].minimum == 0
    for count in (0, 1, 2, 7):
        x = torch.randn(count, 4)
        same(executable(x), chosen(x))


def test_pytorch_tells_nothing_of_sizes_that_an_operator_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """It logs each with its traceback, of a model that compiles."""
    model, x = torch.nn.Upsample(scale_factor=2), torch.randn(1, 3, 4, 5)
    tkc.compile(model, (x,), kernels="none", dynamic_shapes={"input": {2: Dim("h"), 3: Dim("w")}})
    assert not [record for record in caplog.records if "fake_tensor" in record.name]


def test_a_deep_program_runs_each_call_of_a_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that differ in their weights' numbers alone are one call."""
    called: list[object] = []
    call = small_sizes._AtSizes.call_function
    monkeypatch.setattr(
        small_sizes._AtSizes, "call_function", lambda self, *args: called.append(args[0]) or call(self, *args)
    )

    def calls(layers: int) -> int:
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(layers))
        )
        called.clear()
        compiled(model, torch.randn(3, 4), dynamic_shapes=(({0: Dim("n", min=0)},),))
        return len(called)

    assert 0 < calls(2) == calls(6)


def run_without_data(module: dict[str, torch.Tensor], graph: fx.Graph) -> Any:
    """What ``graph`` computes of tensors without data."""
    run = small_sizes._AtSizes(fx.GraphModule(module, graph), {})
    with FakeTensorMode(allow_non_fake_inputs=True):
        return run.run()


def test_numbers_of_constants_tell_calls_apart() -> None:
    """Of two constants of one shape each has its own."""
    graph, numbers = fx.Graph(), []
    for name in ("two", "three"):
        constant = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (graph.get_attr(name),))
        numbers.append(graph.call_function(torch.ops.aten.item.default, (constant,)))
    graph.output(numbers)
    assert run_without_data({"two": torch.tensor(2), "three": torch.tensor(3)}, graph) == [2, 3]


def test_a_tensor_that_changes_shape_in_place_is_no_other() -> None:
    """A result of the same call has the shape that it had."""
    graph = fx.Graph()
    first, second = (graph.call_function(torch.ops.aten.zeros.default, ([3, 4],)) for _ in range(2))
    graph.output([graph.call_function(torch.ops.aten.unsqueeze_.default, (first, 1)), second])
    changed, other = run_without_data({}, graph)
    assert (changed.shape, other.shape) == ((3, 1, 4), (3, 4))
