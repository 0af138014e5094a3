"""Convolutions of the runtime that read concatenations and slices of channels where these come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import tkc

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """What the layer ``out`` reads of an image of 8 channels, and whether nothing of it is copied first."""

    out: nn.Module
    forward: Callable[[Model, Tensor], Tensor | tuple[Tensor, ...]]
    copies_nothing: bool = True


class Model(nn.Module):
    """Two layers, of 16 and 24 channels, and one that reads what ``case`` makes of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 24, 1)
        self.out = case.out

    def both(self, x: Tensor) -> Tensor:
        """Forty channels."""
        return torch.cat([self.first(x), self.second(x).relu()], 1)

    def halves(self, x: Tensor) -> tuple[Tensor, ...]:
        """Eight channels and eight."""
        return self.first(x).chunk(2, 1)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """``x [batch, 8, rows, columns]``."""
        return self.case.forward(self, x)


CASES = {
    "two": Case(nn.Conv2d(40, 12, 3, padding=1), lambda m, x: m.out(m.both(x))),
    "in one another": Case(nn.Conv2d(56, 12, 1), lambda m, x: m.out(torch.cat([m.both(x), m.first(x)], 1))),
    "one of them twice": Case(nn.Conv2d(80, 12, 3), lambda m, x: m.out(torch.cat([m.both(x), m.both(x)], 1))),
    "the model's input": Case(nn.Conv2d(24, 70, 3), lambda m, x: m.out(torch.cat([x, m.first(x)], 1)), False),
    "halves, turned": Case(
        nn.Conv2d(40, 12, 3), lambda m, x: m.out(torch.cat([m.halves(x)[1], m.second(x), m.halves(x)[0]], 1))
    ),
    "halves, joined again": Case(nn.Conv2d(16, 12, 3), lambda m, x: m.out(torch.cat(m.halves(x), 1))),
    "pieces of several widths": Case(
        nn.Conv2d(22, 12, 1), lambda m, x: m.out(torch.cat(m.second(x).split([8, 2, 14], 1)[::2], 1))
    ),
    "a slice": Case(nn.Conv2d(14, 12, 3), lambda m, x: m.out(m.second(x)[:, 5:19])),
    "a slice of a slice": Case(nn.Conv2d(9, 12, 3), lambda m, x: m.out(m.second(x)[:, 5:19][:, 2:11])),
    "a slice of several": Case(nn.Conv2d(20, 12, 3), lambda m, x: m.out(m.both(x)[:, 8:28])),
    "every other channel": Case(nn.Conv2d(12, 12, 3), lambda m, x: m.out(m.second(x)[:, ::2]), False),
    "few channels": Case(
        nn.Conv2d(27, 12, 3), lambda m, x: m.out(torch.cat([m.first(x)[:, :3], m.second(x)], 1)), False
    ),
    "rows joined": Case(nn.Conv2d(16, 12, 3), lambda m, x: m.out(torch.cat([m.first(x), m.first(x)], 2)), False),
    "strides and holes": Case(nn.Conv2d(40, 70, 3, 2, 3, dilation=2), lambda m, x: m.out(m.both(x))),
    "padded": Case(nn.Conv2d(40, 12, 3), lambda m, x: m.out(F.pad(m.both(x), (1, 2, 0, 1)))),
    "few pixels": Case(nn.Conv2d(40, 12, 1), lambda m, x: m.out(m.both(x[:, :, 3:5, 3:5])), False),
    "more than a chunk": Case(nn.Conv2d(1120, 12, 1), lambda m, x: m.out(torch.cat([m.first(x)] * 70, 1))),
    "each channel by itself": Case(nn.Conv2d(40, 40, 3, groups=40), lambda m, x: m.out(m.both(x)), False),
    "groups": Case(nn.Conv2d(40, 40, 3, groups=2), lambda m, x: m.out(m.both(x)), False),
    "a sequence": Case(nn.Conv1d(40, 12, 3), lambda m, x: m.out(m.both(x).flatten(2)), False),
    "read twice": Case(nn.Conv2d(40, 40, 3, padding=1), lambda m, x: m.out(m.both(x)) + m.both(x), False),
    "a half added": Case(nn.Conv2d(8, 8, 3, padding=1), lambda m, x: m.out(m.halves(x)[1]).relu() + m.halves(x)[1]),
    "a half multiplied": Case(nn.Conv2d(8, 8, 1), lambda m, x: (m.out(m.halves(x)[1]) * m.halves(x)[0]).relu()),
    "a half subtracted": Case(
        nn.Conv2d(8, 8, 1), lambda m, x: m.out(m.halves(x)[1]) - m.halves(x)[0], copies_nothing=False
    ),
    "a cross-stage block": Case(
        nn.Conv2d(8, 8, 3, padding=1),
        lambda m, x: torch.cat([*m.halves(x), m.halves(x)[1] + m.out(m.out(m.halves(x)[1]))], 1),
        copies_nothing=False,
    ),
    "a half returned, too": Case(
        nn.Conv2d(8, 8, 3, padding=1), lambda m, x: (m.out(m.halves(x)[1]) + m.halves(x)[1], m.halves(x)[1]), False
    ),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("form", ["static", "symbolic", "own weights"])
@pytest.mark.parametrize("name", CASES)
def test_parts_of_images(name: str, form: str) -> None:
    """As near to float64 as PyTorch, and NaN and infinity where it has them; also in images of a width at the call."""
    torch.manual_seed(0)
    case = CASES[name]
    model = Model(case).eval()
    x = torch.randn(2, 8, 17, 13)
    sizes = {"x": {0: Dim("batch", max=8), 2: Dim("rows", min=8, max=64)}} if form == "symbolic" else None
    executable = tkc.compile(
        model, (x,), target="cpu", dynamic_shapes=sizes, database=False, copy_weights=form == "own weights"
    )
    if case.copies_nothing:
        copied = [
            f.function for f in executable.report.scheduled if any(w in f.function for w in ("concat", "sli", "split"))
        ]
        assert not copied
    unusual = torch.randn(2, 8, 17, 13)
    unusual[0, 3, 4, 5], unusual[0, 6, 0, 0], unusual[0, 1, 16, 12] = torch.nan, torch.inf, -torch.inf
    others = [torch.randn(3, 8, 20, 13), torch.randn(1, 8, 9, 13)] if form == "symbolic" else []
    for image in (x, unusual, *others):
        with torch.no_grad():
            expected = model.float()(image)
            exact = model.double()(image.double())
        model.float()
        for found, own, true in zip(*map(as_tuple, (executable(image), expected, exact)), strict=True):
            assert found.shape == own.shape and found.dtype == torch.float32
            torch.testing.assert_close(found.isfinite(), own.isfinite())
            kept = own.isfinite()
            bound = 4 * (own - true)[kept].abs().max() + 2e-6 * true[kept].abs().max()
            assert (found - true)[kept].abs().max() <= bound


def as_tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One result as a tuple of it."""
    return results if isinstance(results, tuple) else (results,)
