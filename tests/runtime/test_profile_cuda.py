"""Profiles on a GPU: events while it waits, and rows that are the time of its kernels."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import tkc
from tests.runtime.profiled_models import WIDTH
from tkc.runtime.profiling import measuring
from tkc.runtime.profiling.rows import HOST


class Event:
    """Stands for CUDA's on a machine without: done when it is recorded."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Now."""
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """It has happened."""

    def elapsed_time(self, end: Event) -> float:
        """In milliseconds."""
        return (end.time - self.time) * 1e3


def test_events_are_taken_while_the_gpu_waits(layers: tkc.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is before so many functions at a time, from the second call on, and for as long as the host takes."""
    waits: list[float] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: waits.append(cycles))
    monkeypatch.setattr(measuring, "_cycles_per_second", lambda _: 1e9)
    monkeypatch.setattr(measuring._CudaRecorder, "_AHEAD", 4)
    recorder = measuring._CudaRecorder(layers._running.subject(layers.report.calls))
    x = torch.randn(500, WIDTH)
    expected = {row.name: row.seconds for row in layers.profile(x, repeat=9).rows if row.kind != HOST}
    recorder.run([x])
    assert not waits
    recorder.run([x])
    assert len(waits) == 3  # of nine functions
    host = waits[0] / 1e9 / 4 / measuring._SLACK
    assert 0 < host < 0.1
    passed = recorder.passed()
    assert {called.name: calls for called, calls in passed.calls.items()} == dict.fromkeys(expected, 1)
    assert all(0 <= seconds < 1 for seconds in passed.seconds.values())


@pytest.mark.gpu
@pytest.mark.speed
def test_on_a_gpu_rows_are_the_time_of_its_kernels() -> None:
    """Measured by events; a range for each function, and no graph while they are shown."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).eval().cuda().bfloat16()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    executable = tkc.compile(model, (x,), target="cuda", database=False)
    profile = executable.profile(x)
    assert 0.8 * profile.call_seconds < profile.function_seconds < 1.2 * profile.call_seconds
    assert profile.graph_seconds is not None
    assert all(row.roofline is not None and row.roofline < 1.2 for row in profile.rows if row.kind == "kernel")
    with torch.profiler.profile() as recorded:
        executable(x)
        torch.cuda.synchronize()
    assert {row.name for row in profile.rows if row.kind != HOST} <= {event.key for event in recorded.key_averages()}
