"""All operators that are traced as others of PyTorch's which have converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from tkc.frontend.torch.decompositions.indexing import INDEXING
from tkc.frontend.torch.decompositions.linear_algebra import LINEAR_ALGEBRA
from tkc.frontend.torch.decompositions.numbers import NUMBERS
from tkc.frontend.torch.decompositions.ordering import ORDERING

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
    _aten.max_pool2d_with_indices_backward.default,
    _aten.special_log_ndtr.default,
)
"""Operators whose decompositions PyTorch has, but not among its core ones."""


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The decompositions of these files, and those of PyTorch's that are added to its core ones."""
    return {
        **{op: decomposition_table[op] for op in _OF_PYTORCH if op in decomposition_table},
        **INDEXING,
        **ORDERING,
        **LINEAR_ALGEBRA,
        **NUMBERS,
    }
