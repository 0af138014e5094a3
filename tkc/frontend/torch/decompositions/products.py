"""Products and distances of matrices, as operators that have converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    for axis in expand1:
        i1 = i1.unsqueeze(axis)
    for axis in expand2:
        i2 = i2.unsqueeze(axis)
    for axis in expand3:
        i3 = i3.unsqueeze(axis)
    product = i1 * i2 * i3
    return product.sum(list(sumdim), dtype=product.dtype)


def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    wide = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    product = torch.bmm(batch1.to(wide), batch2.to(wide)).sum(0, dtype=wide)
    if not self.is_floating_point() and not self.is_complex():
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    return (product if beta == 0 else self.to(wide) * beta + product).to(self.dtype)


def _distances(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Of each row of ``x`` to each of ``y``, in the p-norm."""
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == 1:
        return difference.sum(-1)
    if p == math.inf:
        return difference.amax(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    return difference.pow(p).sum(-1).pow(1 / p)


def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    if isinstance(x1.shape[-1], int) and x1.shape[-1] == 0:
        shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        return x1.new_zeros((*shape, x1.shape[-2], x2.shape[-2]))
    return _distances(x1, x2, p)


def _pdist_forward(self: Tensor, p: float = 2) -> Any:
    count = self.shape[0]
    if not isinstance(count, int):
        return NotImplemented
    if self.shape[1] == 0:
        return self.new_zeros(count * (count - 1) // 2)
    rows, columns = torch.triu_indices(count, count, 1, device=self.device)
    return _distances(self[rows].unsqueeze(1), self[columns].unsqueeze(1), p).reshape(-1)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    _aten._trilinear.default: _trilinear,
    _aten.addbmm.default: _addbmm,
    _aten._cdist_forward.default: _cdist_forward,
    _aten._pdist_forward.default: _pdist_forward,
}
