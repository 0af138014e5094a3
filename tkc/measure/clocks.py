"""At which clock and power a GPU runs while something is measured: what times depend on where power is at its limit."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch
from pynvml import NVMLError_NotSupported

_SECONDS = 0.02  # between two looks


@contextmanager
def watched(device: torch.device) -> Iterator[dict[str, float]]:
    """The notes ``MHz`` (of the multiprocessors) and ``W``, which are there once the block has ended.

    Both are medians over its time, in which a GPU slows down by itself when it gets hot or comes to its power limit.
    Of a CPU nothing is noted, nor of a GPU that tells nothing, as some virtual ones do.
    """
    notes: dict[str, float] = {}
    if device.type != "cuda":
        yield notes
        return
    ended = threading.Event()
    with ThreadPoolExecutor(1) as background:
        looking = background.submit(_looks, device, ended)
        try:
            yield notes
        finally:
            ended.set()
    with suppress(NVMLError_NotSupported):
        megahertz, milliwatts = zip(*looking.result(), strict=True)
        notes["MHz"], notes["W"] = statistics.median(megahertz), statistics.median(milliwatts) / 1e3


def _looks(device: torch.device, ended: threading.Event) -> list[tuple[int, int]]:
    """The clock in MHz and the power in mW, looked at once at the least."""
    looks: list[tuple[int, int]] = []
    while not looks or not ended.wait(_SECONDS):
        looks.append((torch.cuda.clock_rate(device), torch.cuda.power_draw(device)))
    return looks
