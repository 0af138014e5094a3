"""Models and files that the tests of the PyTorch importer share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.frontend import models


def tensors(inputs: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of ``inputs``."""
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama exported with gradients, so that its ``no_grad`` blocks are subgraphs, and saved."""
    case = models.LLAMA
    program = torch.export.export(
        case.model(num_hidden_layers=1), (), case.inputs(2, 7), dynamic_shapes=dict(case.dynamic_shapes)
    )
    path = tmp_path_factory.mktemp("programs") / "llama.pt2"
    torch.export.save(program, path)
    return path


class Counting(nn.Module):
    """Keeps a count between calls."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One more each time."""
        self.count += 1
        return x + self.count
