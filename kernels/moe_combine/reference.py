"""The weighted sum of a token's rows in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.moe_combine.parameters import MoeCombineParameters


def moe_combine(
    parameters: MoeCombineParameters,
    rows: torch.Tensor,
    positions: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``out [tokens, channels]`` for the tensors that the spec lists."""
    return weighted_sum(parameters, rows, positions, weights).to(rows.dtype)


def weighted_sum(
    parameters: MoeCombineParameters,
    rows: torch.Tensor,
    positions: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in float32; zeros where there are no rows."""
    if positions.numel() == 0 or len(rows) == 0:
        return torch.zeros(positions.shape[0], parameters.channels, device=rows.device)
    at = positions.clamp(0, rows.shape[0] - 1)
    found = rows[at].float()
    if weights is not None:
        by_token = weights[at] if parameters.weight_order == "rows" else weights
        found = found * by_token.float()[..., None]
    return found.sum(1)
