"""The arguments of a TileLang function, as a kernel spec declares them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tilelang.language as T

from tkc.kernels.spec import TensorType


def annotations(tensors: Iterable[TensorType]) -> dict[str, Any]:
    """By name, what to annotate a ``T.prim_func``'s argument with; a named size is one int32 variable in all of them."""
    sizes: dict[str, Any] = {}

    def size(dim: int | str) -> Any:
        return sizes.setdefault(dim, T.dynamic(dim)) if isinstance(dim, str) else dim

    return {tensor.name: T.Tensor([size(dim) for dim in tensor.shape], tensor.dtype) for tensor in tensors}
