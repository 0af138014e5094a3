"""PyTorch's grouped matmul."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters


def candidate(parameters: GroupedMatmulParameters) -> Candidate:
    """With a gather before it and an activation after it where the kernel has them."""
    return grouped


def grouped(parameters: GroupedMatmulParameters, a: torch.Tensor, *operands: torch.Tensor) -> object:
    """``torch._grouped_mm``, after a gather of the rows and before SiLU and the product with the other half."""
    *rows, b, offsets = operands
    for numbers in rows:
        a = a[numbers]
    products = torch._grouped_mm(a, b.transpose(1, 2), offs=offsets)
    if parameters.gated is None:
        return products
    gate, up = products.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up
