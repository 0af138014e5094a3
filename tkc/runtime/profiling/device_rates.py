"""What a device reaches at best, measured with PyTorch: the bytes that it copies and the products that it computes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

_TRIES = 20
_COPIED = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes of the tensor that is copied; larger than caches."""
_WIDTH = {"cpu": 768, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied."""
_AS_FAST_AS = {"float8_e4m3fn": ("bfloat16", 2.0), "float8_e5m2": ("bfloat16", 2.0), "int8": ("bfloat16", 2.0)}
"""Dtypes that PyTorch's plain product does not take, and how many times as fast as another they are on a GPU."""


@functools.cache
def bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.zeros(_COPIED[device.type], dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    return 2.0 * source.nbytes / _least_seconds(device, lambda: destination.copy_(source))


@functools.cache
def flops(device: torch.device, dtype: str) -> float:
    """Operations per second of a product of matrices of ``dtype``, of which a multiplication and addition are two.

    That of float32 where PyTorch has no product of such matrices; on a GPU it is without TF32 unless PyTorch is told so
    (``torch.set_float32_matmul_precision``).
    """
    if device.type == "cuda" and dtype in _AS_FAST_AS:
        other, factor = _AS_FAST_AS[dtype]
        return factor * flops(device, other)
    width: int = _WIDTH[device.type]
    found = getattr(torch, dtype, None)
    if found not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        found = torch.float32
    one = torch.ones(width, width, dtype=found, device=device)
    result = torch.empty_like(one)
    with torch.no_grad():
        operations: float = 2.0 * width**3
        return operations / _least_seconds(device, lambda: torch.mm(one, one, out=result))


def _least_seconds(device: torch.device, work: Callable[[], object]) -> float:
    work()
    seconds: list[float] = []
    for _ in range(_TRIES):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) * 1e-3)
        else:
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    return max(min(seconds), 1e-9)
