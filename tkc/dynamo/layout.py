"""Where the elements of a graph's outputs lie: as PyTorch traced them, which what follows the graph relies on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tkc.frontend.torch.memory_order import at_one_size


@dataclass(frozen=True)
class Layout:
    """``order`` are the axes from the outermost in memory to the innermost; along ``expanded`` ones every element is
    the same one."""

    order: tuple[int, ...]
    expanded: frozenset[int]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of ``tensor`` in this layout."""
        if self.expanded:
            shape = tensor.shape
            first = [slice(0, 1) if axis in self.expanded else slice(None) for axis in range(tensor.dim())]
            return _permuted(tensor[tuple(first)], self.order).expand(shape)
        return _permuted(tensor, self.order)


def layout_of(value: torch.Tensor) -> Layout | None:
    """The layout of a (fake) tensor; ``None`` if it is contiguous, or has no elements."""
    shape: Sequence[int | None] = [size_hint(size) for size in value.shape]
    strides: Sequence[int | None] = [size_hint(stride) for stride in value.stride()]
    if None in shape or None in strides:
        # What data decides is taken for large: how the axes follow each other in memory does not depend on it.
        shape, strides = at_one_size(value.shape), at_one_size(value.stride())
    if 0 in shape:
        return None
    # With symbolic sizes an axis of one element is one at other sizes, too: dynamo makes sizes of one known.
    expanded = frozenset(axis for axis, size in enumerate(shape) if size != 1 and strides[axis] == 0)
    matter = [axis for axis, size in enumerate(shape) if size != 1 and axis not in expanded]
    ordered = sorted(matter, key=lambda axis: -strides[axis])  # type: ignore[operator]  # none is None
    if ordered == matter and not expanded:
        return None
    places = iter(ordered)
    order = tuple(next(places) if axis in matter else axis for axis in range(len(shape)))
    return Layout(order, expanded)


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a (fake) tensor is contiguous at the sizes that it was traced with."""
    shape, strides = [size_hint(size) for size in tensor.shape], [size_hint(stride) for stride in tensor.stride()]
    if None in shape or None in strides:
        return False
    wanted = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]  # type: ignore[arg-type]  # none is None
    return 0 in shape or all(
        size == 1 or stride == expected for size, stride, expected in zip(shape, strides, wanted, strict=True)
    )


def size_hint(size: int | torch.SymInt) -> int | None:
    """A size at tracing; ``None`` where only data decides it."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else None
    return size


def _permuted(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    laid = torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device=tensor.device)
    return laid.copy_(tensor) if math.prod(tensor.shape) else laid
