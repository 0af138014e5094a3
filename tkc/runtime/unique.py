"""ONNX's ``Unique`` as an operator ``tkc::unique``: PyTorch's does not say where a value comes first.

NumPy computes it, on the host. Importing this module registers it.
"""

from __future__ import annotations

import numpy as np
import torch

_LIBRARY = torch.library.Library("tkc", "FRAGMENT")
_LIBRARY.define("unique(Tensor x, int? axis, bool in_order) -> (Tensor, Tensor, Tensor, Tensor)")


def unique(x: torch.Tensor, axis: int | None, in_order: bool) -> tuple[torch.Tensor, ...]:
    """The values, or slices along ``axis``, of ``x`` without repetition, and the ``int64 [n]`` place of each.

    Third is which value each of ``x`` has, a vector, and last how often there is each. They are sorted, or, not
    ``in_order``, as they come first.
    """
    found = np.unique(x.cpu().numpy(), return_index=True, return_inverse=True, return_counts=True, axis=axis)
    values, first, which, counts = found
    which = which.reshape(-1)
    if not in_order:
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        which = place[which]
    return tuple(torch.from_numpy(np.ascontiguousarray(each)).to(x.device) for each in (values, first, which, counts))


_LIBRARY.impl("unique", unique, "CompositeExplicitAutograd")
