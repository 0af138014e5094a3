"""Matmuls of bfloat16 by PyTorch's library on the CPU, called by generated code.

Generated code calls :data:`~tkc.contracts.MULTIPLY_BFLOAT16` with a description in JSON, ``{"transposed": ...}``,
matrices ``[..., M, K]`` and ``[..., K, N]``, or ``[..., N, K]`` if the latter are transposed, and gets ``[..., M, N]``.
"""

from __future__ import annotations

import functools
import json

import torch

from tkc.errors import OutOfMemoryError
from tkc.runtime.input_checks import aligned


def multiply_bfloat16(description: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product that the description says. Raises :class:`OutOfMemoryError`."""
    matrix = right.mT if _is_transposed(description) else right
    try:
        return aligned(torch.matmul(left, matrix))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for a product: {error}") from error


@functools.cache
def _is_transposed(description: str) -> bool:
    return bool(json.loads(description)["transposed"])
