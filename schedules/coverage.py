"""What share of a model's time runs on schedules that tuning found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

COVERED_BY = {"database": "exact", "database (anchor)": "anchor"}


@dataclass(frozen=True)
class Cost:
    """How often a model calls a function and what a call takes.

    ``estimated`` is by operations and bytes, in seconds; ``recorded`` is what the record measured, if there is one.
    """

    calls: int
    estimated: float
    recorded: float | None = None


@dataclass(frozen=True)
class Coverage:
    """Shares of the time of a model's generated functions: tuned exactly, by an anchor's record, or not at all.

    They add up to one, or are all zero for a model without such functions.
    """

    exact: float = 0.0
    anchor: float = 0.0
    none: float = 0.0


def coverage(functions: Iterable[tuple[str, Cost]]) -> Coverage:
    """The shares, from what scheduled each function and its cost.

    A function takes calls × its recorded time. Where none is recorded it takes calls × its estimate, scaled by the
    median of recorded ÷ estimated over those that have both, because machines do not reach their nominal rates.
    """
    rows = list(functions)
    ratios = [cost.recorded / cost.estimated for _, cost in rows if cost.recorded and cost.estimated]
    scale = median(ratios) if ratios else 1.0
    seconds = {"exact": 0.0, "anchor": 0.0, "none": 0.0}
    for scheduled_by, cost in rows:
        once = cost.estimated * scale if cost.recorded is None else cost.recorded
        seconds[COVERED_BY.get(scheduled_by, "none")] += cost.calls * once
    total = sum(seconds.values())
    return Coverage(**{kind: value / total for kind, value in seconds.items()}) if total else Coverage()
