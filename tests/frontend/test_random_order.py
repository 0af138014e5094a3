"""Random numbers as PyTorch draws them: in the order of memory, and also those that nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

import tkc
from tests.frontend.whole_models import Model, called


def _agrees(executable: tkc.Executable, model: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """The results, and the next number that is drawn after them, are PyTorch's from the same seed."""
    with torch.no_grad():
        torch.manual_seed(0)
        expected, afterwards = model(*inputs), torch.rand(1)
        torch.manual_seed(0)
        found = executable(*inputs)
        assert torch.rand(1) == afterwards
    torch.testing.assert_close(found, expected)


MEMORY: dict[str, Callable[[torch.Tensor], Any]] = {
    "rand_like": lambda x: torch.rand_like(x.T),
    "randn_like of a slice": lambda x: torch.randn_like(x[:, ::2].T),
    "randint_like": lambda x: torch.randint_like(x.T, 9),
    "dropout": lambda x: functional.dropout((x + 1).T, 0.5, True),
    "normal_": lambda x: torch.empty_like(x.T).normal_() * 2,
    "bernoulli": lambda x: torch.bernoulli((x + 0.5).T),
    "bernoulli of a number": lambda x: torch.bernoulli((x + 0.5).T, 0.5) + torch.bernoulli(torch.empty_like(x.T), 0.5),
    "bernoulli_": lambda x: torch.empty_like(x.T).bernoulli_(0.5) + x.T.clone().bernoulli_(0.3),
    "bernoulli_ of a slice": lambda x: x.T.clone()[::2].bernoulli_(0.5),
    "bernoulli_ of tensors": lambda x: torch.empty_like(x.T).bernoulli_((x + 0.5).T),
    "alpha dropout": lambda x: functional.alpha_dropout((x + 1).T, 0.5, True),
    "dropout of channels": lambda x: functional.dropout1d((x + 1).T.unsqueeze(0), 0.5, True),
    "exponential_, geometric_": lambda x: torch.empty_like(x.T).exponential_() + torch.empty_like(x.T).geometric_(0.3),
    "cauchy_, log_normal_": lambda x: torch.empty_like(x.T).cauchy_() + torch.empty_like(x.T).log_normal_(),
    "random_, uniform_": lambda x: torch.empty_like(x.T).random_(9) + torch.empty_like(x.T).uniform_(),
    "multinomial": lambda x: torch.multinomial(x.exp().T, 3),
    "of what is broadcast": lambda x: torch.rand_like(x.T.unsqueeze(0).expand(2, -1, -1)),
    "contiguous": lambda x: torch.rand_like(x.T.contiguous()),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", MEMORY)
def test_numbers_fill_memory_in_its_order(name: str) -> None:
    """Of tensors that are views of others with their axes in another order."""
    function, x = MEMORY[name], torch.zeros(4, 6)
    _agrees(tkc.compile(Model(function), (x,)), function, x)


def test_inputs_that_are_not_contiguous() -> None:
    """As the example lies, so are numbers drawn."""
    function = lambda x: torch.rand_like(x) + functional.dropout(x + 1, 0.5, True)  # noqa: E731
    for x in (torch.zeros(3, 4).T, torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        _agrees(tkc.compile(Model(function), (x,)), function, x)


def test_rows_whose_number_data_decides() -> None:
    """The order follows from the strides that PyTorch states, whatever the sizes are."""
    function = lambda x: functional.dropout(x[x[:, 0] > 0].T, 0.5, True) + torch.rand_like(x[x > 0].sum())  # noqa: E731
    x = torch.randn(6, 5)
    executable = tkc.compile(Model(function), (x,))
    for each in (x, x.abs(), -x.abs()):
        _agrees(executable, function, each)


def test_rows_of_any_number() -> None:
    """At sizes other than the example's."""
    function = lambda x: torch.rand_like(x.T) + 1  # noqa: E731
    executable = tkc.compile(Model(function), (torch.zeros(4, 6),), dynamic_shapes=(({0: Dim("rows", max=99)},),))
    for rows in (1, 2, 9):
        _agrees(executable, function, torch.zeros(rows, 6))


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True), (2, 5, 8)),
        (nn.GRU(4, 4, 3, dropout=0.5, batch_first=True, bidirectional=True), (3, 5, 4)),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout2d(0.5), nn.ReLU(), nn.Dropout(0.2)), (2, 3, 4, 4)),
    ],
    ids=["transformer", "gru", "convolution"],
)
def test_layers_in_training(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Dropout behind transposes, and of images whose channels lie last."""
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if x.ndim == 4 else x
    _agrees(tkc.compile(model.train(), (x,)), model, x)


def _not_read(x: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.randperm(5)
    drawn = torch.rand(2, 3)
    functional.dropout(x, 0.5, True)
    return {"doubled": x * 2, "drawn": drawn}


def _not_read_in_part(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    torch.native_dropout(x, 0.5, True)
    torch.bernoulli(x).sum()
    return torch.rand(1), x.shape[0]


def _not_read_at_the_end(x: torch.Tensor) -> torch.Tensor:
    torch.randint(0, 9, (3,))
    return x


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.rand(2), torch.rand(2, 3) + x)[1],
        lambda x: (x + 1, torch.rand(2))[0],
        _not_read,
        _not_read_in_part,
        _not_read_at_the_end,
    ],
    ids=["first", "last", "between", "in part", "all"],
)
def test_numbers_that_nothing_reads_are_drawn(function: Callable[[torch.Tensor], Any]) -> None:
    """Later ones, in the model and behind it, would be other ones without them. The program is as it was."""
    x = torch.zeros(2, 3)
    program = torch.export.export(Model(function), (x,))
    before = str(program.graph)
    executable = tkc.compile(program)
    _agrees(executable, function, x)
    assert str(program.graph) == before
    assert "tkc::after" in called(executable)


def test_a_program_that_draws_only_what_it_reads_has_no_further_operator() -> None:
    """The operator that keeps them is there for numbers that nothing reads alone."""
    executable = tkc.compile(Model(lambda x: x + torch.rand(3)), (torch.zeros(3),))
    assert list(called(executable)) == ["aten::rand"]
