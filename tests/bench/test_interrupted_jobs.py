"""Benchmarks that compile in several processes, and are interrupted."""

from __future__ import annotations

import time

import pytest

from tkc.bench.architectures import _processes


def test_an_interrupted_benchmark_waits_for_no_process() -> None:
    """One of them measures, perhaps for minutes, and does not see the interruption; another has nothing to do."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), _processes(2) as pool:
        for _ in range(3):
            pool.submit(time.sleep, 120)
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert time.monotonic() - start < 30
