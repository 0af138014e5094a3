"""The matrix product with epilogue in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from tkc.kernels.matmul.parameters import MatmulParameters

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def matmul(
    parameters: MatmulParameters, a: torch.Tensor, b: torch.Tensor, *epilogue: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """``activation(a @ b + bias) + residual`` in float32, cast to the outputs' dtype, and cut into them.

    ``epilogue`` holds the bias and the residual, each where the parameters have one.
    """
    operands = iter(epilogue)
    weight = b.float().T if parameters.weight_layout == "nk" else b.float()
    out = a.float() @ weight
    if parameters.bias:
        out = out + next(operands).float()
    if parameters.activation is not None:
        out = ACTIVATIONS[parameters.activation](out)
    if parameters.residual:
        out = out + next(operands).float()
    out = out.to(getattr(torch, parameters.stored_dtype))
    return tuple(out[:, begin:end].contiguous() for begin, end in parameters.ranges)
