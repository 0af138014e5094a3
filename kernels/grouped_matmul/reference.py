"""The grouped matrix product in PyTorch."""

from __future__ import annotations

import itertools

import torch


def grouped_matmul(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, weight_layout: str) -> torch.Tensor:
    """Each group's rows of ``a`` times its weight, in float32, cast to ``a``'s dtype; rows past the groups are zero."""
    weights = b.float() if weight_layout == "gkn" else b.float().mT
    out = torch.zeros(a.shape[0], weights.shape[2], dtype=torch.float32, device=a.device)
    for group, (start, end) in enumerate(itertools.pairwise([0, *offsets.tolist()])):
        out[start:end] = a[start:end].float() @ weights[group]
    return out.to(a.dtype)
