"""A function scheduled by the tuning records that were found for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.trace_apply import schedule_using_anchor_trace
from tvm.target import Target

from tkc.contracts import BY_RULES
from tkc.schedules.blocks import all_in_threads
from tkc.schedules.database import as_workload
from tkc.schedules.default_record import is_default
from tkc.schedules.refusals import REFUSALS, DoesNotApplyError, last_line
from tkc.schedules.sizes import (
    Variant,
    dimensions,
    dimensions_at,
    dispatch,
    in_order_of,
    is_bounded,
    with_known_tiles,
    with_parameters_of,
)

if TYPE_CHECKING:
    from tkc.schedules.database import Found

# TVM samples what an anchor's trace leaves open; the same records must always give the same code.
_SEED = 1
# A variant for one size that gains less takes longer to compile than it is worth; it may be noise.
_HARDLY = 0.05


@dataclass(frozen=True)
class _Reuse:
    """How the records of a workload serve a function: a schedule from a record, and a function from the schedule.

    ``by_rules`` makes the function that the default rules make, for a record that says that they do best.
    """

    replay: Callable[[TuningRecord], s_tir.Schedule]
    adopt: Callable[[tirx.PrimFunc], tirx.PrimFunc]
    by_rules: Callable[[], tirx.PrimFunc]


def schedule_found(
    func: tirx.PrimFunc, found: Found, target: Target, by_rules: Callable[[], tirx.PrimFunc]
) -> tirx.PrimFunc:
    """``func`` scheduled by the best of the records in ``found`` that apply to it.

    Where sizes are symbolic, the records of every size at which they were measured have their say: the function chooses
    among them by its sizes. ``by_rules`` is what schedules ``func`` where a record says that the default rules do best.
    Raises :class:`DoesNotApplyError` if no record applies.
    """
    if not found.records:
        raise DoesNotApplyError("this version cannot read the schedules of its records")
    exact = found.match == "exact"
    reuse = _exactly(func, found, target, by_rules) if exact else _by_anchor(func, target, by_rules)
    if not dimensions(func):
        return with_parameters_of(func, next(_applicable(found.records, reuse, target))[1].scheduled)
    return with_known_tiles(dispatch(func, _variants(func, found, reuse, target)), target)


def recorded_seconds(found: Found) -> float:
    """What one call takes by the records in ``found``: the best one's time; the median of these over its sizes."""
    best: dict[tuple[tuple[int, ...], ...], float] = {}
    for record in found.records:
        shapes = tuple(tuple(map(int, info.shape)) for info in record.args_info)
        seconds = _seconds(record)
        best[shapes] = min(seconds, best.get(shapes, seconds))
    return median(best.values())


def _exactly(func: tirx.PrimFunc, found: Found, target: Target, by_rules: Callable[[], tirx.PrimFunc]) -> _Reuse:
    """Schedules the records' own workload, which computes the same as ``func`` under other names."""
    workload = found.workload.mod

    def replay(record: TuningRecord) -> s_tir.Schedule:
        sch = s_tir.Schedule(workload, seed=_SEED)
        with target:
            record.trace.apply_to_schedule(sch, remove_postproc=False)
        return sch

    return _Reuse(replay, lambda scheduled: in_order_of(func, workload["main"], scheduled), by_rules)


def _by_anchor(func: tirx.PrimFunc, target: Target, by_rules: Callable[[], tirx.PrimFunc]) -> _Reuse:
    """Schedules the anchor block of ``func`` as the records scheduled the same block, and the rest around it."""
    workload = as_workload(func)

    def replay(record: TuningRecord) -> s_tir.Schedule:
        sch = s_tir.Schedule(workload, seed=_SEED)
        with target:
            schedule_using_anchor_trace(sch, record.trace, target)
        return sch

    return _Reuse(replay, lambda scheduled: scheduled, by_rules)


def _variants(func: tirx.PrimFunc, found: Found, reuse: _Reuse, target: Target) -> list[Variant]:
    """A good schedule for each size at which there are records that apply; no size twice."""
    workload = found.workload.mod["main"]
    # An anchor's function may have other dimensions around it, which say nothing of this one's.
    known = len(dimensions(workload)) == len(dimensions(func))
    records: dict[tuple[int, ...], list[TuningRecord]] = {}
    for record in found.records:
        shapes = [info.shape for info in record.args_info]
        records.setdefault(dimensions_at(workload, shapes) if known else (), []).append(record)
    good: dict[tuple[int, ...], list[Variant]] = {}
    refusals: list[DoesNotApplyError] = []
    for at, candidates in records.items():
        try:
            good[at] = _good(candidates, reuse, target)
        except DoesNotApplyError as refusal:
            refusals.append(refusal)
    if not good:
        raise refusals[0]
    return _few(good)


def _good(candidates: Sequence[TuningRecord], reuse: _Reuse, target: Target) -> list[Variant]:
    """The best of ``candidates`` that applies and those that take hardly longer."""
    applicable = _applicable(candidates, reuse, target)
    best, variant = next(applicable)
    return [variant, *(other for seconds, other in applicable if seconds <= best * (1 + _HARDLY))]


def _few(good: Mapping[tuple[int, ...], Sequence[Variant]]) -> list[Variant]:
    """One of the ``good`` variants for each size, as few different ones as a greedy choice finds."""
    chosen: list[Variant] = []
    left = dict(good)
    while left:
        sizes_of: dict[str, list[tuple[int, ...]]] = {}
        for at, variants in left.items():
            for variant in variants:
                sizes_of.setdefault(variant.name, []).append(at)
        # Of those that serve as many sizes, the default rules, which need no search to be understood.
        name = max(sizes_of, key=lambda name: (len(set(sizes_of[name])), name == BY_RULES))
        for at in set(sizes_of[name]):
            variant = next(variant for variant in left.pop(at) if variant.name == name)
            chosen.append(replace(variant, measured_at=at))
    return chosen


def _applicable(records: Sequence[TuningRecord], reuse: _Reuse, target: Target) -> Iterator[tuple[float, Variant]]:
    """The seconds of each record that applies, and what it makes of the function; raises where none does."""
    refusals: list[str] = []
    for record in records:
        applied = _applied(record, reuse, target)
        if isinstance(applied, str):
            refusals.append(applied)
        else:
            yield _seconds(record), applied
    if len(refusals) == len(records):
        raise DoesNotApplyError(refusals[0])


def _applied(record: TuningRecord, reuse: _Reuse, target: Target) -> Variant | str:
    """What the record's schedule makes of the function, or why it does not apply."""
    if is_default(record.trace):
        return Variant((), reuse.by_rules(), BY_RULES)
    try:
        scheduled = reuse.replay(record).mod["main"]
    except REFUSALS as refusal:
        return last_line(refusal)
    return _problem(scheduled, target) or Variant((), reuse.adopt(scheduled), str(record.trace))


def _seconds(record: TuningRecord) -> float:
    return median(float(run) for run in record.run_secs)


def _problem(scheduled: tirx.PrimFunc, target: Target) -> str | None:
    """Why no code can be generated from ``scheduled``; ``None`` if it can."""
    if not is_bounded(with_known_tiles(scheduled, target)):
        return "the schedule needs a constant where this function has a size known only at run time"
    if target.kind.name == "cuda" and not all_in_threads(scheduled):
        return "the schedule leaves a block outside of the GPU's threads"
    return None
