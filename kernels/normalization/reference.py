"""Layer and root-mean-square normalization in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.moe_combine.reference import weighted_sum
from tkc.kernels.moe_combine.spec import MoeCombine
from tkc.kernels.normalization.spec import Normalization, NormalizationParameters


def normalization(parameters: NormalizationParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``out [tokens, channels]`` and, if kept, ``sum``, for the tensors that the spec lists."""
    p = parameters
    named = {t.name: tensor for t, tensor in zip(Normalization().inputs(p), inputs, strict=True)}
    dtype = getattr(torch, p.dtype)
    if p.combined is None:
        wide = named["x"].float()
    else:
        wide = weighted_sum(p.combined, *inputs[: len(MoeCombine().inputs(p.combined))])
    if p.residual:
        wide = wide + named["residual"].float()
    x = wide.to(dtype)
    wide = x.float()
    if p.kind == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + p.epsilon)
    if p.weight:
        out = out * named["weight"].float()
    if p.bias:
        out = out + named["bias"].float()
    return (out.to(dtype), x) if p.keeps_sum else (out.to(dtype),)
