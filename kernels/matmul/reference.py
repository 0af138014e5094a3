"""The matrix product with epilogue in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    weight = b.float().T if parameters.weight_layout == "nk" else b.float()
    out = with_epilogue(parameters, a.float() @ weight, epilogue)
    return tuple(out[:, begin:end].contiguous() for begin, end in parameters.ranges)


def with_epilogue(
    parameters: MatmulParameters, product: torch.Tensor, epilogue: Iterable[torch.Tensor]
) -> torch.Tensor:
    """``activation(product + bias) + residual`` of a product ``[m, n]`` in float32, cast to the outputs' dtype."""
    operands = iter(epilogue)
    if parameters.bias:
        product = product + next(operands).float()
    if parameters.activation is not None:
        product = ACTIVATIONS[parameters.activation](product)
    if parameters.residual:
        product = product + next(operands).float()
    return product.to(getattr(torch, parameters.stored_dtype))
