"""Scans, sorts and gathers become functions of their own, and fuse with what is before, however its size is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc

Operator = Callable[[torch.Tensor], torch.Tensor]

BEFORE: dict[str, Operator] = {
    "roll": lambda x: torch.roll(x, 1, 1),
    "roll by half": lambda x: torch.roll(x, x.shape[1] // 2, 1),
    "cat of slices": lambda x: torch.cat((x[:, 1:], x[:, :1]), 1),
    "pad": lambda x: nn.functional.pad(x, (2, 1))[:, 1:-1],
    "repeat": lambda x: x.repeat(1, 3)[:, : 2 * x.shape[1]],
}
SCANS: dict[str, Operator] = {
    "sort": lambda x: torch.sort(x, 0, descending=True)[0],
    "topk": lambda x: torch.topk(x, 2, 0)[0],
    "cumsum": lambda x: x.cumsum(1),
    "cummax": lambda x: x.cummax(0)[0],
    "argmax": lambda x: x.argmax(1),
}


class Scan(nn.Module):
    """A scan of a tensor whose rows are rearranged before."""

    def __init__(self, before: Operator, scan: Operator) -> None:
        super().__init__()
        self.before, self.scan = before, scan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scan of the rearranged rows."""
        return self.scan(self.before(x))


@pytest.mark.daily(5)
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("before", BEFORE)
def test_scans_of_rearranged_rows(before: str, scan: str) -> None:
    """In 16 bits, which are cast in between, at several lengths of the rows."""
    model, shapes = Scan(BEFORE[before], SCANS[scan]), ({1: Dim("n", min=3, max=64)},)
    example = torch.randperm(40).view(5, 8).half()
    executable = tkc.compile(model, (example,), target="cpu", dynamic_shapes=shapes, database=False)
    for n in (8, 3, 7, 33):
        x = torch.randperm(5 * n).view(5, n).half()
        torch.testing.assert_close(executable(x), model(x))
