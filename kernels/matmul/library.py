"""PyTorch's matmul: cuBLAS on a GPU."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.matmul.parameters import MatmulParameters


def candidate(parameters: MatmulParameters) -> Candidate:
    """The matmul alone, without the kernel's epilogue."""
    return matmul


def matmul(parameters: MatmulParameters, a: torch.Tensor, b: torch.Tensor, *added: torch.Tensor) -> object:
    """The product; what the kernel adds is left out."""
    return a @ (b.T if parameters.weight_layout == "nk" else b)
