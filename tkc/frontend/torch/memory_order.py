"""In which order of axes a tensor of PyTorch's lies in memory, where an operator's results depend on it."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch._ops import OpOverload

from tkc.frontend.torch.callable_operators import draws_numbers, of_another_library

_ANY_SIZE = 1 << 10
"""What a symbolic size is taken for: any number of several elements gives the order."""


def follows_memory(called: OpOverload) -> bool:
    """Whether what an operator computes may depend on the strides of its operands.

    Random numbers are drawn in the order of memory, and operators of other libraries may read memory as they like. To
    all others a tensor is the same however it lies.
    """
    if draws_numbers(called):
        return True
    return of_another_library(called) and torch.Tag.flexible_layout not in called.tags


def memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes of a (fake) tensor from the outermost in memory to the innermost; ``None`` if that is their own order.

    Of one that is not dense, as a slice or what is broadcast, those of a dense tensor like it.
    """
    sizes, strides = at_one_size(tensor.shape), at_one_size(tensor.stride())
    dense = torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    order = sorted(axes, key=lambda axis: -dense[axis])
    return None if order == axes else [*order, *(axis for axis, size in enumerate(sizes) if size == 1)]


def at_one_size(given: Sequence[int | torch.SymInt]) -> list[int]:
    """Sizes or strides, at one value of every symbol in them, also of those that data decides."""
    return [_number(each.node.expr) if isinstance(each, torch.SymInt) else each for each in given]


def _number(expression: sympy.Expr) -> int:
    return int(expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(_ANY_SIZE))))
