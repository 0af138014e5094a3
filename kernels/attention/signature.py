"""A TileLang function with the arguments that a kernel spec declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tilelang.language as T
from tilelang import tvm
from tilelang.language.eager.builder import Builder

from tkc.kernels.spec import TensorType


def prim_func(name: str, tensors: Iterable[TensorType], body: Callable[..., None]) -> tvm.tirx.PrimFunc:
    """The function ``name`` that takes ``tensors`` in order and does what the macro ``body`` does with them by name.

    ``T.prim_func`` reads its arguments off a Python signature, which would have to be written once for each
    combination of optional tensors. A named size becomes one int32 variable wherever it occurs.
    """
    sizes: dict[str, tvm.tirx.Var] = {}

    def size(dim: int | str) -> int | tvm.tirx.Var:
        return sizes.setdefault(dim, T.dynamic(dim)) if isinstance(dim, str) else dim

    builder = Builder()
    with builder.prim_func(name):
        arguments = {
            tensor.name: builder.prim_func_arg(tensor.name, T.Tensor([size(dim) for dim in tensor.shape], tensor.dtype))
            for tensor in tensors
        }
        body(**arguments)
    return builder.get()
