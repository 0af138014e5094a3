"""Loading PyTorch's parts in a process that is to fork: one that has a CUDA context could not."""

from __future__ import annotations

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

    PyTorch's operator database asks for it when it is imported, and lists dtypes by it. Whether there is Triton, for
    which its import asks the GPU too, matters to none of its samples.
    """
    with (
        patch.object(torch.cuda, "get_device_capability", _capability),
        patch.object(torch.utils._triton, "has_triton", lambda: False),
    ):
        yield


def check() -> None:
    """Raise :class:`RuntimeError` if this process has a CUDA context, with which no forked one could use a GPU."""
    if torch.cuda.is_initialized():
        raise RuntimeError("something initialized CUDA in the process that is to fork; find it by patching _cuda_init")


def _capability(device: object = None) -> tuple[int, int]:
    pynvml.nvmlInit()
    try:
        found: tuple[int, int] = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
        return found
    finally:
        pynvml.nvmlShutdown()
