"""Layer and root-mean-square normalization in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.normalization.spec import Normalization, NormalizationParameters


def normalization(parameters: NormalizationParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``out [tokens, channels]`` and, if kept, ``sum``, for the tensors that the spec lists."""
    p = parameters
    named = {t.name: tensor for t, tensor in zip(Normalization().inputs(p), inputs, strict=True)}
    x = named["x"]
    if p.residual:
        x = (x.float() + named["residual"].float()).to(x.dtype)
    wide = x.float()
    if p.kind == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + p.epsilon)
    if p.weight:
        out = out * named["weight"].float()
    if p.bias:
        out = out + named["bias"].float()
    return (out.to(x.dtype), x) if p.keeps_sum else (out.to(x.dtype),)
