"""Ordering token copies by expert, in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.moe_permute.parameters import MoePermuteParameters


def moe_permute(parameters: MoePermuteParameters, experts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``sorted``, ``order``, ``inverse [copies]`` and ``offsets [num_experts]`` of ``experts [copies]``, and ``tokens
    [copies]`` if asked."""
    experts = experts.clamp(0, parameters.num_experts - 1)
    ascending, order = torch.sort(experts, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    offsets = torch.bincount(experts.long(), minlength=parameters.num_experts).cumsum(0)
    tokens = () if parameters.top_k is None else ((order // parameters.top_k).to(experts.dtype),)
    return ascending, order.to(experts.dtype), inverse.to(experts.dtype), offsets.to(torch.int32), *tokens
