"""PyTorch's batched matmul: cuBLAS on a GPU."""

from __future__ import annotations

import torch

from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.cases import Candidate


def candidate(parameters: BatchedMatmulParameters) -> Candidate:
    """For both layouts."""
    return batched


def batched(parameters: BatchedMatmulParameters, a: torch.Tensor, b: torch.Tensor) -> object:
    """``torch.bmm``."""
    return torch.bmm(a, b.mT if parameters.layout == "nk" else b)
