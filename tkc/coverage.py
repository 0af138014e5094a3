"""What share of a model's time runs on schedules that tuning found."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tkc.runtime.report_rows import Coverage
from tkc.schedules.estimate import Cost

COVERED_BY = {"database": "exact", "database (anchor)": "anchor"}


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
