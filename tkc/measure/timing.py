"""Median times of models and of kernels, on the CPU and on the GPU."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

_GRAPH_MILLISECONDS = 1.0  # of kernels in one graph: long beside the events that time it
_LEAST_TURNS = 5


@dataclass(frozen=True)
class Timing:
    """``milliseconds`` of one call, the median of all turns, and the turns' ``spread``: the distance between their
    quartiles over the median.
    """

    milliseconds: float
    spread: float

    @classmethod
    def of(cls, turns: Sequence[float]) -> Timing:
        """What at least two ``turns``, in milliseconds, come to."""
        lower, median, upper = statistics.quantiles(turns, n=4, method="inclusive")
        return cls(median, (upper - lower) / median)


def median_milliseconds(call: Callable[[], object], device: torch.device, seconds: float = 0.5) -> float:
    """The median time of ``call`` in milliseconds over about ``seconds``, after warming up.

    On the GPU by CUDA events, with the L2 cache flushed between calls (Triton's ``do_bench``).
    """
    if device.type == "cuda":
        from triton.testing import do_bench

        milliseconds = seconds * 1e3
        return float(do_bench(call, warmup=milliseconds / 5, rep=milliseconds, return_mode="median"))
    return Timing.of(_turns_on_cpu(call, seconds)).milliseconds


def kernel_timings(
    contenders: Mapping[str, Sequence[Callable[[], object]]], device: torch.device, seconds: float = 0.5
) -> dict[str, Timing]:
    """The time of one call of each contender, whose calls do the same on memory of their own.

    On the GPU they follow each other in a CUDA graph, as kernels do in a compiled model: what a launch costs the host
    does not count, and with calls that together touch more than the L2 cache holds, none finds its operands there.
    Contenders take turns, because the device slows down as it gets warm. ``seconds`` is for each.
    """
    if device.type != "cuda":
        return {name: Timing.of(_turns_on_cpu(calls[0], seconds)) for name, calls in contenders.items()}
    graphs = {name: _recorded(calls, device) for name, calls in contenders.items()}
    turns = _turns([recording.count * recording.milliseconds for recording in graphs.values()], seconds)
    events = {name: [(_event(), _event()) for _ in range(turns)] for name in contenders}
    for turn in range(turns):
        for name, recording in graphs.items():
            start, end = events[name][turn]
            start.record()
            recording.graph.replay()
            end.record()
    torch.cuda.synchronize(device)
    return {
        name: Timing.of([start.elapsed_time(end) / recording.count for start, end in events[name]])
        for name, recording in graphs.items()
    }


def _turns(milliseconds: Sequence[float], seconds: float) -> int:
    """How many turns take about ``seconds`` for each contender, whose turns last so many ``milliseconds``."""
    return max(_LEAST_TURNS, round(len(milliseconds) * seconds * 1e3 / sum(milliseconds)))


@dataclass(frozen=True)
class _Recording:
    """A graph of ``count`` calls, each of which takes about so many ``milliseconds``."""

    graph: torch.cuda.CUDAGraph
    count: int
    milliseconds: float


def _recorded(calls: Sequence[Callable[[], object]], device: torch.device) -> _Recording:
    """All calls, as often as makes it long enough to time."""
    alone = median_milliseconds(calls[0], device, seconds=0.02)
    count = max(len(calls), math.ceil(_GRAPH_MILLISECONDS / alone))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for call in islice(cycle(calls), count):
            call()
    graph.replay()
    return _Recording(graph, count, alone)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _turns_on_cpu(call: Callable[[], object], seconds: float) -> list[float]:
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < _LEAST_TURNS:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times
