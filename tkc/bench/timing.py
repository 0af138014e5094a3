"""Median times of calls, on the CPU and on the GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def median_milliseconds(call: Callable[[], object], device: torch.device, seconds: float = 0.5) -> float:
    """The median time of ``call`` in milliseconds over about ``seconds``, after warming up.

    On the GPU by CUDA events, with the L2 cache flushed between calls (Triton's ``do_bench``).
    """
    if device.type == "cuda":
        from triton.testing import do_bench

        milliseconds = seconds * 1e3
        return float(do_bench(call, warmup=milliseconds / 5, rep=milliseconds, return_mode="median"))
    call()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
