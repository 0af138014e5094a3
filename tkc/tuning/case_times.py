"""How long one case of a kernel takes in several configurations: quickly in each, by turns what comes close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from tkc.kernels.cases import Case
from tkc.measure.prepared_case import Prepared
from tkc.measure.timing import kernel_timings, median_milliseconds
from tkc.tuning.kernels import right_calls

_SECONDS = 0.02  # of measuring each configuration for the first time
_ROUND_SECONDS = 0.08  # of each that may be the fastest, in each round
ROUNDS = 3
"""How often what comes close is measured, by turns."""
_CLOSE = 1.15  # times the fastest so far: may be the fastest when measured for longer
_HOPELESS = 2.0  # times the best so far, in a single run: not worth measuring

Times = dict[Any, tuple[float, ...]]
"""Milliseconds by configuration: those of each round, or one alone for what does not come close."""


def case_times(
    case: Case,
    functions: Mapping[Any, Callable[..., object]],
    present: Any,
    device: torch.device,
    is_over: Callable[[], bool],
) -> Times:
    """The times of the configurations that ``functions`` are built in, and that compute the right thing.

    ``present`` is measured as long as what comes close, so that it can be compared. When ``is_over``, no further
    configuration is begun. Raises :class:`RuntimeError` where the device has no room for the case.
    """
    prepared = Prepared(case, device)
    times: Times = {}
    close: dict[Any, list[Callable[[], object]]] = {}
    for configuration in sorted(functions, key=lambda each: each != present):
        if times and is_over():
            break
        if (calls := right_calls(prepared, functions[configuration], configuration)) is None:
            continue
        fastest = min((alone for (alone,) in times.values()), default=None)
        if fastest is not None:
            once = median_milliseconds(calls[0], device, _SECONDS / 20)
            if once > _HOPELESS * fastest:
                times[configuration] = (once,)
                continue
        times[configuration] = (kernel_timings({"": calls}, device, _SECONDS)[""].milliseconds,)
        close[configuration] = calls
        limit = _CLOSE * min(alone for (alone,) in times.values())
        close = {each: own for each, own in close.items() if each == present or times[each][0] <= limit}
    if len(close) > 1:
        rounds: dict[Any, list[float]] = {configuration: [] for configuration in close}
        for _ in range(ROUNDS):
            timings = kernel_timings({str(each): own for each, own in close.items()}, device, _ROUND_SECONDS)
            for configuration, found in rounds.items():
                found.append(timings[str(configuration)].milliseconds)
        times |= {configuration: tuple(found) for configuration, found in rounds.items()}
    return times


def faster(times: list[Times], weights: list[float], present: Any, least: float) -> Any:
    """The configuration that is fastest over all cases, whose ``times`` count by ``weights``; ``present`` if none is.

    It must take at most ``least`` of the present time in sum, be faster in every round, and in no case slower by more.
    """
    rounds = [len(own[present]) for own in times]
    best, best_time = present, _sum(times, weights, present)
    limit = least * best_time
    for configuration in times[0]:
        if any(len(own.get(configuration, ())) != count for own, count in zip(times, rounds, strict=True)):
            continue  # far behind in one of them, or not measured
        total = _sum(times, weights, configuration)
        if total > limit or total >= best_time:
            continue
        in_rounds = all(
            sum(w * own[configuration][turn] for own, w in zip(times, weights, strict=True))
            < sum(w * own[present][turn] for own, w in zip(times, weights, strict=True))
            for turn in range(min(rounds))
        )
        nowhere_slower = all(least * median(own[configuration]) <= median(own[present]) for own in times)
        if in_rounds and nowhere_slower:
            best, best_time = configuration, total
    return best


def _sum(times: list[Times], weights: list[float], configuration: Any) -> float:
    return sum(weight * median(own[configuration]) for own, weight in zip(times, weights, strict=True))
