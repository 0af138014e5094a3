"""The dtypes that kernels compute in, and those of the indices that they read."""

from __future__ import annotations

from typing import Literal, TypeGuard, get_args

from tkc.passes.graph.found import Refusal

KernelFloat = Literal["float32", "float16", "bfloat16"]


IndexDtype = Literal["int32", "int64"]


def is_index_dtype(name: str) -> TypeGuard[IndexDtype]:
    """Whether kernels read indices of the dtype ``name``."""
    return name in get_args(IndexDtype)


def is_kernel_float(name: str) -> TypeGuard[KernelFloat]:
    """Whether kernels compute on tensors of the dtype ``name``."""
    return name in get_args(KernelFloat)


def unfit_dtype(name: str) -> Refusal:
    """The refusal of floating-point tensors that no kernel takes."""
    return Refusal(f"it computes in {name}, and the kernel in {', '.join(get_args(KernelFloat))}")
