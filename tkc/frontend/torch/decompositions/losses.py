"""Losses as operators that have converters, where PyTorch's own decompositions err."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten


def _multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Of each row the classes before its first -1 against all that are not among them.

    PyTorch's own decomposition also adds the margins of class 0 for each target that there is not, and checks no
    target. ``[N, C]`` or ``[C]``; the loss, and which classes are targets, in the dtype of ``self``.
    """
    rows, targets = (tensor.reshape(-1, tensor.shape[-1] if tensor.ndim else 1) for tensor in (self, target))
    count = rows.shape[1]
    inside = ((targets >= -1) & (targets < count)).all()
    torch.ops.aten._assert_async.msg(
        inside, "multilabel_margin_loss: expected targets from -1 to the number of classes"
    )
    classes = torch.arange(count, device=self.device)
    ends = torch.where(targets == -1, classes, count).amin(-1, keepdim=True)
    given = classes < ends
    scores = rows.gather(1, torch.where(given, targets, 0))
    among = ((targets.unsqueeze(2) == classes) & given.unsqueeze(2)).any(1)
    margins = (1 - scores.unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    margins = torch.where(given.unsqueeze(2) & ~among.unsqueeze(1), margins, 0)
    losses = margins.sum((1, 2)) / count
    if reduction == 0:
        losses = losses if self.ndim > 1 else losses.reshape(())
    else:
        losses = losses.mean() if reduction == 1 else losses.sum()
    return losses, among.to(self.dtype).reshape(target.shape)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    _aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
}
"""By the operators that they compute."""
