"""What compiled models return beside tensors: numbers, constants, and structures of them, as PyTorch has them."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import tkc
from tests.frontend.whole_models import Model, compiled, same
from tkc.diagnosis.reference import run_source

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))

Pair = namedtuple("Pair", "left right")


@dataclass
class Encoded:
    """A model's result, as transformers has them."""

    hidden: torch.Tensor
    length: int
    scores: tuple[float, ...]


pytree.register_dataclass(Encoded, serialized_type_name="tkc_tests.Encoded")

OUTPUTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a size": lambda x, y: x.shape[0],
    "what follows from sizes": lambda x, y: (x.shape[0] * 2 + 1, x * 2, x.shape[0] // 2 - y.shape[1] % 3),
    "known numbers": lambda x, y: (x.shape[1], 2, 0.5, False, "text", None, x.ndim),
    "truth values": lambda x, y: [x.shape[0] > 3, x.shape[0] == 2 * y.shape[1], x + 1],
    "floats": lambda x, y: {"half": x.shape[0] / 2, "root": x.shape[0] ** 0.5, "x": x},
    "extremes": lambda x, y: (torch.sym_max(x.shape[0], 4), torch.sym_min(x.shape[0], y.shape[1])),
    "elements": lambda x, y: (x.numel(), y.numel() + x.numel(), torch.sym_not(x.shape[0] > 3)),
    "nested": lambda x, y: {"a": [x.shape[0], {"b": (y.exp(), None), "c": Pair(x.shape[0] + 1, y)}]},
    "a dictionary in its order": lambda x, y: OrderedDict(z=x.shape[0], a=x + y.sum()),
    "a dataclass": lambda x, y: Encoded(x.exp(), x.shape[0], (x.shape[0] / 4, 1.0)),
    "the same twice": lambda x, y: (lambda z: (z, z, x.shape[0], x.shape[0], x, x))(x * y.sum()),
    "numbers of data": lambda x, y: (x.sum().item(), x.argmax().item(), (x > 0).any().item(), x.max().item() * 2),
    "counts": lambda x, y: (lambda z: (z[:, 0] * 2, z.shape[0], z.shape[0] * 2 + x.shape[0]))(torch.nonzero(x > 0)),
    "nothing": lambda x, y: None,
}


def _all(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {name: function(x, y) for name, function in OUTPUTS.items()}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", [_all, OUTPUTS["a size"], OUTPUTS["nothing"], OUTPUTS["a dataclass"]])
def test_results_have_pytorchs_types_and_structure(function: Callable[..., Any]) -> None:
    """Compiled once, at several sizes."""
    rows, columns = Dim("rows", min=2, max=100), Dim("columns", min=2, max=100)
    shapes = (({0: rows}, {1: columns}),)
    executable = compiled(function, torch.randn(6, 4), torch.randn(3, 5), dynamic_shapes=shapes)
    for sizes in ((6, 5), (3, 2), (4, 2), (9, 7)):
        inputs = torch.randn(sizes[0], 4), torch.randn(3, sizes[1])
        same(executable(*inputs), function(*inputs))


class Counts(nn.Module):
    """Keeps a count, and changes one of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        """Numbers before and behind what is updated."""
        self.count += 1
        y.add_(1)
        return x.sum().item(), self.count, x.shape[0], y, x * 2, y.shape[0] / 2


def test_numbers_beside_what_a_call_updates() -> None:
    """Each at its place."""
    rows = Dim("rows", min=2, max=100)
    executable = tkc.compile(
        Counts(), (torch.randn(6, 4), torch.ones(6)), dynamic_shapes=({0: rows}, {0: rows}), kernels="none"
    )
    model = Counts()
    for size in (6, 3):
        x, y = torch.randn(size, 4), torch.rand(size)
        mine = y.clone()
        found = executable(x, mine)
        assert found[3].data_ptr() == mine.data_ptr() and found[1] is executable.state["count"]
        same(found, model(x, y))


def test_an_artifact_returns_the_same(tmp_path: Path) -> None:
    """Also a copy; and a program that was saved before."""
    function = OUTPUTS["a dataclass"]
    rows = Dim("rows", min=2, max=100)
    x, y = torch.randn(6, 4), torch.randn(3, 5)
    program = torch.export.export(Model(function), (x, y), dynamic_shapes=(({0: rows}, None),))
    torch.export.save(program, tmp_path / "model.pt2")
    executable = tkc.compile(tmp_path / "model.pt2", kernels="none", database=False)
    loaded = tkc.load(executable.save(tmp_path / "model.tkc"))
    for each in (executable, loaded, copy.copy(executable)):
        same(each(x[:3], y), function(x[:3], y))
    assert "0 to 100" in repr(executable) and "inputs_0_0" in repr(executable).split("outputs")[1].splitlines()[0]


def test_arrays_in_arrays_and_numbers_out() -> None:
    """Of NumPy, whose shapes are as good."""
    rows = Dim("rows", min=2, max=100)
    function = Model(lambda x: (x + 1, x.shape[0] * 3, x.sum().item()))
    executable = compiled(function, torch.ones(6, 4), dynamic_shapes=(({0: rows},),))
    array, number, total = executable(torch.ones(5, 4).numpy())
    assert (type(array).__name__, number, total) == ("ndarray", 15, 20.0)


def test_what_compares_with_pytorch_knows_numbers(tmp_path: Path) -> None:
    """``tkc.debug`` and ``tkc run --compare``."""
    model = Model(lambda x: (x * 2, x.shape[0], x.max().item(), x.shape[0] / 2, 3, x.exp()))
    program = torch.export.export(model, (X,), dynamic_shapes=(({0: Dim("rows", min=2, max=100)},),))
    torch.export.save(program, tmp_path / "model.pt2")
    assert [tuple(output.shape) for output in run_source(tmp_path / "model.pt2", [X])] == [(6, 4), (), (), (6, 4)]
    assert not any(row.differs for row in tkc.debug(program, kernels="none").outputs)


class _Scaled(nn.Module):
    def forward(self, given: Any, *, more: Any) -> Any:
        """``given`` in its own structure, scaled."""
        return type(given)(*(pytree.tree_map(lambda x: x * more.scale, given[:])))


Given = namedtuple("Given", ("x", "y"))


@dataclass
class More:
    """A scale and a number that stays as it is."""

    scale: torch.Tensor
    number: int


torch.export.register_dataclass(More)


def test_structures_without_a_written_form_are_taken_too() -> None:
    """Of classes that PyTorch has no name for."""

    model, given = _Scaled(), Given(torch.randn(4, 3), torch.randn(4))
    more = More(torch.tensor(2.0), 3)
    executable = tkc.compile(model, (given,), {"more": more}, target="cpu")
    found, expected = executable(given, more=more), model(given, more=more)
    assert type(found) is Given and all(map(torch.equal, found, expected))
    with pytest.raises(tkc.InputError, match="fixed to 3"):
        executable(given, more=More(torch.tensor(2.0), 4))
