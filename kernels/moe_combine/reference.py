"""The weighted sum of a token's rows in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.moe_combine.spec import MoeCombineParameters


def moe_combine(
    parameters: MoeCombineParameters,
    rows: torch.Tensor,
    positions: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``out [tokens, channels]`` for the tensors that the spec lists."""
    if positions.numel() == 0:
        return rows.new_empty(positions.shape[0], parameters.channels)
    at = positions.clamp(0, rows.shape[0] - 1)
    found = rows[at].float()
    if weights is not None:
        found = found * weights[at].float()[..., None]
    return found.sum(1).to(rows.dtype)
