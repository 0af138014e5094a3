"""In which order of axes a tensor of PyTorch's lies in memory, where an operator's results depend on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from tkc.frontend.torch.callable_operators import of_another_library


def follows_memory(called: OpOverload) -> bool:
    """Whether what an operator computes may depend on the strides of its operands.

    Random numbers are drawn in the order of memory, and operators of other libraries may read memory as they like. To
    all others a tensor is the same however it lies.
    """
    if torch.Tag.nondeterministic_seeded in called.tags:
        return True
    return of_another_library(called) and torch.Tag.flexible_layout not in called.tags


def memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes of a (fake) tensor from the outermost in memory to the innermost; ``None`` if that is their own order.

    Of one that is not dense, as a slice or what is broadcast, those of a dense tensor like it. One whose sizes data
    decides is taken for contiguous.
    """
    sizes, strides = _known(tensor.shape), _known(tensor.stride())
    if sizes is None or strides is None:
        return None
    dense = torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    order = sorted(axes, key=lambda axis: -dense[axis])
    return None if order == axes else [*order, *(axis for axis, size in enumerate(sizes) if size == 1)]


def _known(numbers: Sequence[int | torch.SymInt]) -> list[int] | None:
    """Sizes or strides, those of the example where they are symbolic; ``None`` where data decides one."""
    found = [each.node.hint if isinstance(each, torch.SymInt) else each for each in numbers]
    return None if None in found else [int(each) for each in found]
