"""Models and files that the tests of the PyTorch importer share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def tensors(inputs: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of ``inputs``."""
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


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
