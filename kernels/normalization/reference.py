"""Layer and root-mean-square normalization in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.moe_combine.reference import weighted_sum
from tkc.kernels.normalization.parameters import NormalizationParameters


def normalization(parameters: NormalizationParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``out [tokens, channels]`` and, if kept, ``sum``, for the tensors that the spec lists."""
    p, rest = parameters, iter(inputs)
    dtype = getattr(torch, p.dtype)
    if p.combined is None:
        wide = next(rest).float()
    else:
        rows, positions = next(rest), next(rest)
        weights = None if p.combined.weight_dtype is None else next(rest)
        wide = weighted_sum(p.combined, rows, positions, weights)
    if p.residual:
        wide = wide + next(rest).float()
    x = wide.to(dtype)
    wide = x.float()
    if p.kind == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + p.epsilon)
    if p.weight:
        out = out * next(rest).float()
    if p.bias:
        out = out + next(rest).float()
    return (out.to(dtype), x) if p.keeps_sum else (out.to(dtype),)
