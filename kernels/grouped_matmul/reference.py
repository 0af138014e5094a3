"""The grouped matrix product in PyTorch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from tkc.kernels.matmul.reference import ACTIVATIONS

if TYPE_CHECKING:
    from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters


def grouped_matmul(parameters: GroupedMatmulParameters, a: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """Each group's rows of ``a`` times its weight, in float32, cast to ``a``'s dtype; rows past the groups are zero.

    ``operands`` are the rows' numbers, if ``a``'s are gathered, the weights, and the groups' ends. Gated, the first
    half of the products' columns is activated and multiplied with the second.
    """
    *rows, b, offsets = operands
    for numbers in rows:
        a = a[numbers.long().clamp(0, len(a) - 1)] if len(a) else a.new_zeros(len(numbers), parameters.k)
    weights = b.float() if parameters.weight_layout == "gkn" else b.float().mT
    products = torch.zeros(a.shape[0], weights.shape[2], dtype=torch.float32, device=a.device)
    for group, (start, end) in enumerate(itertools.pairwise([0, *offsets.tolist()])):
        products[start:end] = a[start:end].float() @ weights[group]
    if parameters.gated is not None:
        gate, up = products.chunk(2, -1)
        products = ACTIVATIONS[parameters.gated](gate) * up
    return products.to(a.dtype)
