"""Loading PyTorch's parts in a process that is to fork: one that has a CUDA context could not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pynvml
import torch
import torch.utils._triton


@contextmanager
def without_cuda() -> Iterator[None]:
    """What runs inside is told that there is no GPU: exporting a graph would save the GPU's random state."""
    with patch.object(torch.cuda, "is_available", lambda: False):
        yield


@contextmanager
def capability_of_the_driver() -> Iterator[None]:
    """Inside, the GPU's compute capability comes from its driver, which needs no context.

    PyTorch's operator database asks for it when it is imported, and lists dtypes by it.
    """
    with patch.object(torch.cuda, "get_device_capability", _capability), without_gpu_libraries():
        yield


@contextmanager
def without_gpu_libraries() -> Iterator[None]:
    """Inside, PyTorch's operator database is imported without Triton and Numba, and does not ask for cuDNN.

    Whether these are there matters to none of its samples; Triton and Numba bring an LLVM of their own.
    """
    with patch.object(torch.utils._triton, "has_triton", lambda: False), _without_numba():
        from torch.testing._internal import common_cuda

        with patch.object(common_cuda, "TEST_CUDNN", False):
            yield


@contextmanager
def _without_numba() -> Iterator[None]:
    """Importing Numba fails inside. Other modules that are imported meanwhile stay, which ``patch.dict`` drops."""
    missing = object()
    before = sys.modules.get("numba", missing)
    sys.modules["numba"] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        yield
    finally:
        if before is missing:
            del sys.modules["numba"]
        else:
            sys.modules["numba"] = before  # type: ignore[assignment]  # a module


@contextmanager
def no_context() -> Iterator[None]:
    """What initializes CUDA inside raises :class:`RuntimeError`, with a traceback that says what it was.

    Fake tensors ask how many GPUs there are, which initializes the driver; with at least one it changes nothing.
    """
    with (
        patch.object(torch.cuda, "_lazy_init", _refuse),
        patch.object(torch._C, "_ensureCUDADeviceGuardSet", lambda: None),
    ):
        yield


def _refuse() -> None:
    raise RuntimeError("CUDA must not be initialized in a process that is to fork")


def _capability(device: object = None) -> tuple[int, int]:
    pynvml.nvmlInit()
    try:
        found: tuple[int, int] = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
        return found
    finally:
        pynvml.nvmlShutdown()
