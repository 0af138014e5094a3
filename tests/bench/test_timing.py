"""How times of turns are told in two figures."""

from __future__ import annotations

import torch

from tkc.measure.timing import Timing, _turns, kernel_timings


def test_the_spread_is_that_of_the_middle_half() -> None:
    """Relative to the median; one turn that something else disturbed says nothing."""
    timing = Timing.of([4.0, 2.0, 3.0, 5.0, 100.0])
    assert timing == Timing(4.0, (5.0 - 3.0) / 4.0)
    assert Timing.of([3.0, 3.0, 3.0]).spread == 0.0


def test_turns_of_long_calls_are_few() -> None:
    """A benchmark takes about as long as it was told to, but for a few turns at the least."""
    assert _turns([1.0, 1.0], 0.5) == 500
    assert _turns([44.0, 46.0], 0.5) == 11
    assert _turns([900.0], 0.5) == 5


def test_each_contender_has_a_time_and_a_spread() -> None:
    """Of its own calls."""
    few, many = torch.ones(8, 8), torch.ones(512, 512)
    calls = {"few": [lambda: few @ few], "many": [lambda: many @ many]}
    found = kernel_timings(calls, torch.device("cpu"), seconds=0.05)
    assert found["many"].milliseconds > 2 * found["few"].milliseconds > 0
    assert all(timing.spread >= 0 for timing in found.values())
