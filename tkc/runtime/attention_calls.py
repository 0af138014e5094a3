"""Attention of bfloat16 by PyTorch's library on the CPU, called by generated code.

Generated code calls :data:`~tkc.contracts.ATTEND` with a description in JSON, ``{"scale": ..., "is_causal": ...,
"layouts": [...]}``, the layouts those of queries, keys, values and result (``bshd`` or ``bhsd``:
:class:`~tkc.kernels.attention.parameters.AttentionParameters`), then queries, keys, values and, if there is one, the
mask, and gets the result.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from tkc.errors import OutOfMemoryError
from tkc.runtime.input_checks import aligned


def attend(description: str, *operands: torch.Tensor) -> torch.Tensor:
    """The attention that the description says. Raises :class:`OutOfMemoryError`."""
    try:
        return aligned(_attention(description)(*operands))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for attention: {error}") from error


@functools.cache
def _attention(description: str) -> Callable[..., torch.Tensor]:
    call = json.loads(description)
    *of_operands, of_result = (layout == "bshd" for layout in call["layouts"])  # rows before heads

    def run(*operands: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.transpose(1, 2) if turn else each for each, turn in zip(operands, of_operands, strict=False))
        mask = operands[3] if len(operands) > 3 else None
        found = scaled_dot_product_attention(
            q, k, v, mask, is_causal=call["is_causal"], scale=call["scale"], enable_gqa=q.shape[1] != k.shape[1]
        )
        return found.transpose(1, 2) if of_result else found

    return run
