"""A Triton kernel as an operator of PyTorch's, as authors of kernels register theirs. To import it takes Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256


@triton.jit  # type: ignore[untyped-decorator]
def _scaled_kernel(x, y, n, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    tl.store(y + places, tl.load(x + places, mask=inside) * scale, mask=inside)


@torch.library.triton_op("tkc_tests_triton::scaled", mutates_args={})
def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """``x * scale``."""
    y = torch.empty_like(x)
    torch.library.wrap_triton(_scaled_kernel)[(triton.cdiv(x.numel(), _BLOCK),)](x, y, x.numel(), scale, BLOCK=_BLOCK)
    return y
