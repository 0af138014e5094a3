"""What is noted of a device while it is measured."""

from __future__ import annotations

import itertools
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from pynvml import NVMLError, NVMLError_GpuIsLost, NVMLError_NotSupported

import tkc.bench.kernels
from tkc.bench.kernels import bench_kernels
from tkc.kernels import Target
from tkc.kernels.cases import Case
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.measure.clocks import watched


def test_a_gpu_is_looked_at_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The medians are those of many looks, in MHz and W."""
    clocks = itertools.chain([1980], itertools.repeat(1455))
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: next(clocks))
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 698_500)
    with watched(torch.device("cuda")) as notes:
        time.sleep(0.2)
        assert notes == {}
    assert notes == {"MHz": 1455, "W": 698.5}


def test_what_fails_meanwhile_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody goes on looking."""
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: 1980)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 100_000)
    with pytest.raises(RuntimeError, match="out of memory"), watched(torch.device("cuda")):
        raise RuntimeError("out of memory")


def test_a_gpu_that_tells_nothing_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the notes are missing; any other failure of the driver is raised."""
    for error, expected in (
        (NVMLError_NotSupported(), nullcontext()),
        (NVMLError_GpuIsLost(), pytest.raises(NVMLError)),
    ):
        monkeypatch.setattr(torch.cuda, "clock_rate", Mock(side_effect=error))
        with expected, watched(torch.device("cuda")) as notes:
            pass
        assert notes == {}


def test_rows_of_kernels_and_of_the_device_have_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside their own, and the kernel's only row is checked and timed."""
    cpu = Target.parse("cpu")
    case = Case("normalization", NormalizationParameters(64, "float32", "rms", 1e-6), {"tokens": 4})
    monkeypatch.setattr(tkc.bench.kernels, "benchmark_cases", lambda: [case])
    monkeypatch.setattr(tkc.bench.kernels, "watched", lambda device: nullcontext({"MHz": 1455.0}))
    rows = list(bench_kernels([], cpu, RecordedChoices([]), False))
    assert len(rows) == 3 and rows[0].error is not None and rows[0].error < 1e-5
    assert all(row.notes["MHz"] == 1455.0 and len(row.notes) > 1 for row in rows)


def test_of_a_cpu_nothing_is_noted() -> None:
    """Its clock is not the benchmark's to tell."""
    with watched(torch.device("cpu")) as notes:
        pass
    assert notes == {}
