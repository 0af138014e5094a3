"""Rotary position embedding in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.rotary.spec import RotaryParameters


def rotary(parameters: RotaryParameters, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``out`` in the layout of ``x``, for the tensors that the spec lists."""
    heads = 2 if parameters.layout == "bshd" else 1
    if parameters.shared_angles:
        cos, sin = cos[None], sin[None]
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return (x.float() * cos.float().unsqueeze(heads) + turned * sin.float().unsqueeze(heads)).to(x.dtype)
