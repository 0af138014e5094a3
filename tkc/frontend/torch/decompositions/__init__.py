"""Operators as others of PyTorch's that have converters, where PyTorch's own core decompositions have none.

A decomposition that returns ``NotImplemented`` leaves its operator whole: it is called in PyTorch, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._refs as refs
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from tkc.frontend.torch.decompositions import functions, indexing, losses, ordering, products

_aten = torch.ops.aten

_OF_PYTORCH = (
    _aten.view_copy.default,
    _aten.view_copy.dtype,
    _aten.narrow_copy.default,
    _aten.permute_copy.default,
    _aten.unbind_copy.int,
    _aten.dist.default,
    _aten.addmv.default,
    _aten.triu_indices.default,
    _aten.tril_indices.default,
)
"""Operators whose decompositions PyTorch has, but not among its core ones."""


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The decompositions of this package, and those of PyTorch's that are added to its core ones."""
    return {
        **{op: decomposition_table[op] for op in _OF_PYTORCH if op in decomposition_table},
        **indexing.DECOMPOSITIONS,
        **ordering.DECOMPOSITIONS,
        **products.DECOMPOSITIONS,
        **functions.DECOMPOSITIONS,
        **losses.DECOMPOSITIONS,
        _aten.logaddexp2.default: refs.logaddexp2,
    }
