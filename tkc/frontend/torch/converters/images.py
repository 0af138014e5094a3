"""What convolutions, pooling and resampling share: options of each axis of an image, and reads at its edges."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Emitter


def for_each_axis(values: Any, rank: int) -> list[int]:
    """An option of an operator as a number for each of ``rank`` axes: PyTorch takes one number for all of them too."""
    numbers: list[int] = list(values) if isinstance(values, list | tuple) else [values]
    return numbers * rank if len(numbers) == 1 else numbers


def batched(b: Emitter, x: relax.Expr, rank: int) -> relax.Expr:
    """``x [channels, ...]`` as a batch of one; with more than ``rank + 1`` axes it is a batch already."""
    return x if x.struct_info.ndim > rank + 1 else b.emit(op.expand_dims(x, 0))


def unbatched(b: Emitter, out: relax.Expr) -> relax.Expr:
    """The result for a batch of one in the number of axes that PyTorch states."""
    return out if out.struct_info.ndim == len(b.shape) else op.squeeze(b.emit(out), [0])
