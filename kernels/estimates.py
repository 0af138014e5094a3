"""Configurations chosen by estimated times, at sizes of which nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tkc.kernels.spec import Choice

Estimate = Callable[[Any, int], float]
"""Microseconds of a configuration at a size by which calls choose."""

# Where work is cut into tiles of 64 or 128 rows, their number is the same for all sizes up to one of these.
_SIZES = (
    *(1, 16, 32, 48),
    *range(64, 1024, 64),
    *range(1024, 4096, 128),
    *range(4096, 8192, 256),
    *range(8192, 16385, 1024),
)
Between = tuple[int, int]
"""The smallest and the largest size of calls."""

ALL_SIZES: Between = (0, _SIZES[-1])
"""Larger ones are served as the largest."""

_MOST = 8  # configurations of one kernel: each is built
_WORTH = 0.005  # what another one must gain over all sizes, as a ratio
_ALIKE = 1.01  # times the fastest: the configuration of smaller sizes stays
_CHOSEN_BY_MEASURING = 0.95  # what a configuration's estimate counts where the measurements of a kernel alike chose it


def estimated_choices(
    offered: Sequence[Any],
    estimate: Estimate,
    alike: Callable[[int], Any],
    measured: Mapping[int, Any],
    between: Between = ALL_SIZES,
) -> tuple[Choice[Any], ...]:
    """The configurations of ``offered`` that are estimated to be the fastest, of at most 8 kinds, for sizes ``between``
    two.

    ``measured`` has what was the fastest at some sizes, which is chosen there. ``alike`` says what a kernel alike has
    for a size, ``None`` where there is no such kernel: that is chosen as well if another one is hardly faster.
    """
    steps = _steps(*between)
    times = [
        {c: estimate(c, size) * (_CHOSEN_BY_MEASURING if c == alike(size) else 1.0) for c in offered}
        for _, size in steps
    ]
    fixed = [_measured_between(measured, below, size) for below, size in steps]
    used = _fewest(steps, times, fixed)
    choices: list[Choice[Any]] = []
    for (_, size), own, certain in zip(steps, times, fixed, strict=True):
        fastest = certain or min(used, key=own.__getitem__)
        if choices and (choices[-1].configuration == fastest or (not certain and _stays(choices[-1], own, fastest))):
            fastest = choices.pop().configuration
        choices.append(Choice(fastest, size))
    return (*choices[:-1], Choice(choices[-1].configuration))


def _steps(least: int, most: int) -> list[tuple[int, int]]:
    """The sizes to choose for, each with the one below which it does not serve."""
    largest = _SIZES[-1]
    if least >= most or least > largest:
        return [(least - 1, least)]
    most = min(most, largest)
    inside = [(max(below, least - 1), min(size, most)) for below, size in pairwise((0, *_SIZES))]
    return [(below, size) for below, size in inside if below < size]


def _stays(last: Choice[Any], times: Mapping[Any, float], fastest: Any) -> bool:
    return times[last.configuration] <= _ALIKE * times[fastest]


def _measured_between(measured: Mapping[int, Any], below: int, size: int) -> Any:
    """What was measured at the largest size above ``below``, up to ``size``."""
    inside = [each for each in measured if below < each <= size]
    return measured[max(inside)] if inside else None


def _fewest(steps: Sequence[Between], times: Sequence[Mapping[Any, float]], fixed: Sequence[Any]) -> list[Any]:
    """The configurations that together come near to the fastest at all sizes, doublings of sizes counting alike.

    One after the other is taken, each time the one that gains the most.
    """
    used = list(dict.fromkeys(c for c in fixed if c is not None))
    weights = [math.log(size + 2) - math.log(below + 2) for below, size in steps]  # from below -1 to size 0, too
    total = sum(weights)
    offered = list(times[0])
    logarithms = [[math.log(own[c]) for c in offered] for own in times]
    best = [min((row[offered.index(c)] for c in used), default=max(row)) for row in logarithms]
    while len(used) < _MOST:
        gains = [
            sum(w * max(0.0, at - row[i]) for w, at, row in zip(weights, best, logarithms, strict=True)) / total
            for i in range(len(offered))
        ]
        found = max(range(len(offered)), key=gains.__getitem__)
        if used and gains[found] < _WORTH:
            break
        used.append(offered[found])
        best = [min(at, row[found]) for at, row in zip(best, logarithms, strict=True)]
    return used
