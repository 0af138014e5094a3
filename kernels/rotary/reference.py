"""Rotary position embedding in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.rotary.parameters import RotaryParameters


def rotary(
    parameters: RotaryParameters, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *optional: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """``out`` and, if there are keys, ``key_out``, for the tensors that the spec lists."""
    p, rest = parameters, iter(optional)
    weight = next(rest) if p.weight else None
    out = _turned(p, x, cos, sin, weight)
    if not p.key_heads:
        return (out,)
    keys = next(rest)
    return out, _turned(p, keys, cos, sin, next(rest) if p.weight else None)


def _turned(
    p: RotaryParameters, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    heads = 2 if p.layout == "bshd" else 1
    if p.shared_angles:
        cos, sin = cos[None], sin[None]
    values = x.float()
    if p.epsilon is not None:
        scale = None if weight is None else weight.float()
        values = torch.nn.functional.rms_norm(values, (p.size,), scale, p.epsilon)
    turning, rest = values[..., : p.channels], x[..., p.channels :]
    if p.pairs == "halves":
        first, second = turning.chunk(2, -1)
        crossed = torch.cat([-second, first], -1)
    else:
        crossed = torch.stack([-turning[..., 1::2], turning[..., ::2]], -1).flatten(-2)
    turned = turning * cos.float().unsqueeze(heads) + crossed * sin.float().unsqueeze(heads)
    return torch.cat([turned.to(x.dtype), rest], -1)
