"""The gated matrix product in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tkc.kernels.matmul.reference import ACTIVATIONS

if TYPE_CHECKING:
    from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters


def gated_matmul(parameters: GatedMatmulParameters, a: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """``activation(a @ gate + gate_bias) * (a @ up + up_bias)`` in float32, cast to ``a``'s dtype.

    ``operands`` are the weights, then the biases where the parameters have some, in the spec's order.
    """
    p = parameters
    columns = 0 if p.weight_layout == "nk" else 1
    count = 1 if p.packed else 2
    weight = torch.cat(operands[:count], columns).float()
    products = a.float() @ (weight.T if p.weight_layout == "nk" else weight)
    if p.bias:
        products = products + torch.cat(operands[count:]).float()
    gate, up = products.chunk(2, -1)
    return (ACTIVATIONS[p.activation](gate) * up).to(a.dtype)
