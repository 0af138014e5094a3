"""The matrix product of scaled FP8 operands in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tkc.kernels.fp8 import QUANTIZATION_BLOCK

if TYPE_CHECKING:
    from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters


def scaled_matmul(
    parameters: ScaledMatmulParameters,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
) -> torch.Tensor:
    """``(a * a_scale) @ (b * b_scale).T`` in float32, each scale repeated over what shares it, cast at the end."""
    rows = a.float() * _repeated(a_scale, 1, parameters.k)
    weight = b.float() * _repeated(_repeated(b_scale, 0, parameters.n), 1, parameters.k)
    return (rows @ weight.T).to(getattr(torch, parameters.out_dtype))


def _repeated(scale: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    return scale.repeat_interleave(QUANTIZATION_BLOCK, axis).narrow(axis, 0, size)
