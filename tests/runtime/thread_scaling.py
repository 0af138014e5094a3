"""Calls per second of one executable by the number of threads that call it: ``python thread_scaling.py 1 2 4 8``.

The model computes on one core (``TVM_NUM_THREADS=1``), so that more calls a second come of more threads only. Rounds of
all numbers of threads take turns, and medians are compared, because other programs may run beside this one.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

os.environ["TVM_NUM_THREADS"] = "1"  # before a model is loaded

import torch
from torch import nn

import tkc

ROUNDS, SECONDS = 7, 0.6


@dataclass(frozen=True)
class Scaling:
    """What one number of threads reached: calls a second, how many times one thread's, and busy cores."""

    threads: int
    calls: float
    ratio: float
    cores: float


def compiled() -> tuple[tkc.Executable, torch.Tensor]:
    """A model of some milliseconds a call, half of them in a kernel, and its input."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)).eval()
    x = torch.randn(32, 512)
    return tkc.compile(model, (x,), kernels="all", max_concurrency=64), x


def measured(numbers: Sequence[int], rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Scaling]:
    """The median over ``rounds`` for each number of threads; the first should be 1."""
    executable, x = compiled()
    executable(x)
    found: dict[int, list[tuple[float, float]]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number in numbers:
            found[number].append(_rate(executable, x, number, seconds))
    calls = {number: statistics.median(rate for rate, _ in found[number]) for number in numbers}
    cores = {number: statistics.median(busy for _, busy in found[number]) for number in numbers}
    # Each round's own ratio: what else runs changes less between neighbours.
    ratios = {
        number: statistics.median(
            rate / alone for (rate, _), (alone, _) in zip(found[number], found[numbers[0]], strict=True)
        )
        for number in numbers
    }
    return [Scaling(number, calls[number], ratios[number], cores[number]) for number in numbers]


def _rate(executable: tkc.Executable, x: torch.Tensor, threads: int, seconds: float) -> tuple[float, float]:
    """Calls a second of so many threads together, and how many cores they kept busy."""
    counts, ready, until = [0] * threads, threading.Barrier(threads + 1), [0.0]

    def call(number: int) -> None:
        ready.wait()
        while time.monotonic() < until[0]:
            executable(x)
            counts[number] += 1

    callers = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
    for caller in callers:
        caller.start()
    begun, busy = time.monotonic(), time.process_time()
    until[0] = begun + seconds
    ready.wait()
    for caller in callers:
        caller.join()
    took = time.monotonic() - begun
    return sum(counts) / took, (time.process_time() - busy) / took


def main(arguments: Sequence[str]) -> None:
    """Print a table of what is ``measured``."""
    warnings.simplefilter("ignore")
    print(f"{'threads':>7} {'calls/s':>9} {'ratio':>6} {'busy cores':>10}")
    for row in measured([int(argument) for argument in arguments] or [1, 2]):
        print(f"{row.threads:7} {row.calls:9.1f} {row.ratio:6.2f} {row.cores:10.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
