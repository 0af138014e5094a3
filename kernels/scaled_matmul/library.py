"""PyTorch's matmul of FP8 operands with block scales."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters


def candidate(parameters: ScaledMatmulParameters) -> Candidate | None:
    """It exists (for ``k`` a multiple of 512) on compute capability 9.0 alone."""
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return block_scaled if on_hopper else None


def block_scaled(
    parameters: ScaledMatmulParameters,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
) -> object:
    """``torch.nn.functional.scaled_mm`` with a scale for 1x128 of ``a`` and for 128x128 of ``b``."""
    # PyTorch wants the rows' scales column by column. Taking ours for that costs no time, and the result is not read.
    by_column = a_scale.view(a_scale.shape[::-1]).T
    recipes = torch.nn.functional.ScalingType
    return torch.nn.functional.scaled_mm(
        a, b.T, by_column, recipes.BlockWise1x128, b_scale.T, recipes.BlockWise128x128, output_dtype=torch.bfloat16
    )
