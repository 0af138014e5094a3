"""Functions as ranges of PyTorch's and NVIDIA's profilers."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tkc
from tests.runtime.profiled_models import WIDTH
from tkc.runtime.profiling.rows import HOST


def test_functions_are_ranges_of_the_profiler_by_the_same_names(layers: tkc.Executable) -> None:
    """While it records, and in the order of the rows' calls; never, if that is asked for."""
    x = torch.randn(4, WIDTH)
    names = {row.name for row in layers.profile(x, repeat=1).rows if row.kind != HOST}
    expected = layers(x)
    for ranges, shown in ((None, names), (True, names), (False, set())):
        layers.ranges = ranges
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
                results = [layers(x), layers(x)]
        finally:
            layers.ranges = None
        assert all(torch.equal(result, expected) for result in results)
        found = {event.key: event.count for event in recorded.key_averages() if "layers." in event.key}
        assert found == dict.fromkeys(shown, 2)


def test_ranges_of_several_threads_are_their_own(layers: tkc.Executable) -> None:
    """Each call is followed by itself; results are the same."""
    inputs = [torch.randn(rows, WIDTH) for rows in (1, 9, 33, 60)]
    expected = [layers(x) for x in inputs]
    named = copy.copy(layers)
    named.ranges = True
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            results = threads.map(named, inputs)
            assert all(map(torch.equal, results, expected))


def test_a_range_ends_where_a_function_fails() -> None:
    """The next call's ranges are not inside of it."""
    executable = tkc.compile(nn.Sequential(Fails(), nn.Linear(4, 4)), (torch.eye(4),), database=False)
    executable.ranges = True
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        with pytest.raises(tkc.Error):
            executable(torch.zeros(4, 4))
        executable(torch.eye(4))
    calls = [event for event in recorded.events() if event.name.startswith("aten::linalg") and "[" in event.name]
    assert len(calls) == 2
    assert all(event.cpu_parent is None or "[" not in event.cpu_parent.name for event in calls)


class Fails(nn.Module):
    """Raises for matrices that are not positive definite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[4, 4]``."""
        return torch.linalg.cholesky(x)
