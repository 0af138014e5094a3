"""PyTorch's counterpart of a gated matmul: two matmuls and an elementwise function."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters


def candidate(parameters: GatedMatmulParameters) -> Candidate:
    """With SiLU."""
    return gated


def gated(parameters: GatedMatmulParameters, a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> object:
    """``silu(a @ gate.T) * (a @ up.T)``."""
    return torch.nn.functional.silu(a @ gate.T) * (a @ up.T)
