"""Models that tests profile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tkc.runtime.profiling.node_names import named_nodes
from tkc.runtime.profiling.profile import Profile
from tkc.runtime.profiling.rows import HOST

WIDTH = 48


class Block(nn.Module):
    """A feed-forward layer around which its input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, WIDTH]``."""
        added: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return added


class Layers(nn.Module):
    """Three of them, which share their functions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, WIDTH]``."""
        for layer in self.layers:
            x = layer(x)
        return x


def functions(profile: Profile) -> dict[str, Any]:
    """The rows of functions, by the nodes that they compute."""
    found = {named_nodes(row.nodes): row for row in profile.rows if row.kind != HOST}
    assert len(found) == len(profile.rows) - 1
    return found
