"""PyTorch's counterpart of ordering token copies by expert: a sort."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.moe_permute.parameters import MoePermuteParameters


def candidate(parameters: MoePermuteParameters) -> Candidate:
    """Without the offsets and the inverse."""
    return sort


def sort(parameters: MoePermuteParameters, experts: torch.Tensor) -> object:
    """A stable sort of the copies by their experts."""
    return torch.sort(experts, stable=True)
