"""Symbolic sizes of PyTorch's models: their names, and how they depend on each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.frontend import execution
from tkc.frontend.torch.importer import import_torch
from tkc.runtime.signature import SizeRange
from tkc.runtime.sizes import Formula

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


class Joined(nn.Module):
    """Adds a sequence and one of another size."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The elements of both, one after the other."""
        return torch.cat([x, y])


def test_unnamed_sizes_are_called_after_their_input() -> None:
    """A dimension that the user only marks as dynamic gets a readable name; results show how theirs follows."""
    examples = torch.randn(3), torch.randn(5)
    imported = import_torch(Joined(), examples, dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    assert [spec.shape for spec in imported.signature.inputs] == [("x_0",), ("y_0",)]
    assert imported.signature.outputs[0].shape == ("x_0 + y_0",)


def test_sizes_that_depend_on_each_other() -> None:
    """A derived dimension is a size of its own, with bounds that follow from the other's."""
    rows = Dim("rows", min=3, max=8)
    imported = import_torch(Joined(), (torch.randn(4), torch.randn(9)), dynamic_shapes=({0: rows}, {0: 2 * rows + 1}))
    assert imported.signature.sizes == {"rows": SizeRange(3, 8), "y_0": SizeRange(7, 17)}
    assert imported.signature.conditions == ("y_0 == (1 + 2*rows)",)
    x, y = torch.randn(5), torch.randn(11)
    assert torch.equal(execution.executable(imported)(x, y)[0], torch.cat([x, y]))


def test_size_known_only_through_another() -> None:
    """A symbol that no input has by itself is computed from the one that depends on it."""

    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1).sum(0)

    half = Dim("half", min=2, max=9)
    imported = import_torch(Half(), (torch.randn(8),), dynamic_shapes=({0: 2 * half},))
    x = torch.randn(10)
    (found,) = execution.executable(imported)(x)
    assert torch.allclose(found, x.reshape(2, -1).sum(0))


def test_conditions_that_export_leaves_to_the_call() -> None:
    """What must hold between two sizes is part of the signature; a size that only the data decides is not."""

    class Blocks(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.reshape(-1, 4).sum(0), x.flatten() + y

    rows, columns, numbers = Dim("rows", min=3, max=64), Dim("columns", min=4, max=99), Dim("numbers", min=12, max=6336)
    shapes = ({0: rows, 1: columns}, {0: numbers})
    signature = import_torch(Blocks(), (torch.ones(8, 5), torch.ones(40)), dynamic_shapes=shapes).signature
    holds = [Formula(condition) for condition in signature.conditions]
    assert all(condition({"rows": 6, "columns": 6, "numbers": 36}) for condition in holds)
    assert not all(condition({"rows": 6, "columns": 5, "numbers": 30}) for condition in holds)  # no multiple of 4
    assert not all(condition({"rows": 6, "columns": 6, "numbers": 35}) for condition in holds)
