"""Losses of targets: what PyTorch refuses is refused, and ignored targets are not looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import tkc


class Loss(nn.Module):
    """A function of scores and targets."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        return self.function(scores, targets)


def compiled(function: Callable[[Tensor, Tensor], Tensor], scores: Tensor, targets: Tensor) -> tkc.Executable:
    """The loss of any number of rows."""
    shapes = {"scores": {0: Dim("n", min=1)}, "targets": {0: Dim("n", min=1)}}
    exported = torch.export.export(Loss(function), (scores, targets), dynamic_shapes=shapes)
    return tkc.compile(exported, target="cpu", kernels="none", fallback=False)


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[list[int]], list[list[int]]]] = {
    "nll_loss": (
        lambda x, y: F.nll_loss(x, y, weight=torch.arange(5.0) + 1, reduction="sum"),
        [[1, 0, 4], [1, -100, 2], [3]],
        [[1, 0, 5], [1, -1, 2], [1 << 40]],
    ),
    "cross_entropy": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=7),
        [[1, 0, 4], [7, 0, 2]],
        [[1, 0, 5], [1, -100, 2]],
    ),
    "multi_margin_loss": (lambda x, y: F.multi_margin_loss(x, y, p=2), [[1, 0, 4], [2]], [[1, 0, 5], [1, -1, 2]]),
    "a selection of one's own": (
        lambda x, y: x.gather(1, torch.where(y < 0, 0, y)[:, None]),
        [[1, 0, 4], [-9, 0, 2]],
        [[1, 0, 5]],
    ),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", CASES)
def test_targets_of_classes(name: str) -> None:
    """In range, ignored, and out of range."""
    function, good, bad = CASES[name]
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    exe = compiled(function, scores, torch.tensor(good[0]))
    for targets in map(torch.tensor, good):
        torch.testing.assert_close(exe(scores[: len(targets)], targets), function(scores[: len(targets)], targets))
    for targets in map(torch.tensor, bad):
        with pytest.raises((IndexError, RuntimeError)):
            function(scores[: len(targets)], targets)
        with pytest.raises(tkc.InputError):
            exe(scores[: len(targets)], targets)


LABELS = [[3, 0, -1, 1], [1, 2, -1, 0], [-1, 3, 3, 3], [0, 1, 2, 3], [2, 2, -1, -1]]


@pytest.mark.daily(1)
@pytest.mark.parametrize("reduction", ["mean", "none", "sum"])
def test_targets_of_several_labels(reduction: str) -> None:
    """Up to the first -1: none, some, all, and one twice. What stands behind it is checked, too, as PyTorch does."""
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    def function(x: Tensor, y: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, y, reduction=reduction)

    exe = compiled(function, scores, torch.tensor(LABELS))
    for rows in (slice(0, 5), slice(2, 3), slice(1, 4)):
        targets = torch.tensor(LABELS[rows])
        torch.testing.assert_close(exe(scores[rows], targets), function(scores[rows], targets))
    for bad in ([0, 4, -1, -1], [-1, 9, 9, 9], [-2, 0, 1, 2]):
        targets = torch.tensor([LABELS[0], bad])
        with pytest.raises(RuntimeError):
            function(scores[:2], targets)
        with pytest.raises(tkc.InputError, match="multilabel_margin_loss"):
            exe(scores[:2], targets)
