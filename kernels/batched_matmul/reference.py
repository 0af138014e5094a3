"""The batched matrix product in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters


def batched_matmul(parameters: BatchedMatmulParameters, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of every entry in float32, cast to the output's dtype."""
    right = b.float().mT if parameters.layout == "nk" else b.float()
    return (a.float() @ right).to(getattr(torch, parameters.stored_dtype))
