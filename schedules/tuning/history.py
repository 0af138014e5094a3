"""What earlier jobs left in the database, by workload: what was tried, what is alike, what the cost model learns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import CostModel
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

from tkc.schedules.blocks import iterator_kinds, nodes
from tkc.schedules.database import exact_key
from tkc.schedules.default_record import is_default
from tkc.schedules.refusals import REFUSALS
from tkc.schedules.sizes import size_variables
from tkc.schedules.tuning.records import seconds_of, succeeded

# Of more, the model would learn little, and replaying them takes a while.
_LIKES = 16
_LESSONS = 64


class History:
    """Records by the key of their workload."""

    def __init__(self, records: Iterable[TuningRecord]) -> None:
        self._records: dict[str, list[TuningRecord]] = {}
        keys: dict[tvm.IRModule, str] = {}
        for record in records:
            module = record.workload.mod
            if module not in keys:
                keys[module] = exact_key(module)
            self._records.setdefault(keys[module], []).append(record)
        modules = {key: found[0].workload.mod for key, found in self._records.items()}
        # Candidates and lessons come from functions whose sizes are known.
        self._kinds = {key: _kind(mod) for key, mod in modules.items() if not size_variables(mod["main"])}

    def of(self, workload: tvm.IRModule) -> Sequence[TuningRecord]:
        """The records of ``workload``, those of failures too."""
        return self._records.get(exact_key(workload), [])

    def likes(self, workload: tvm.IRModule) -> Sequence[TuningRecord]:
        """The best record of each other workload that is like ``workload``."""
        best = (min(_schedules(self._records[key]), key=seconds_of, default=None) for key in self._alike(workload))
        return [record for record in best if record is not None]

    def teach(self, model: CostModel, workloads: Iterable[tvm.IRModule], target: tvm.target.Target) -> None:
        """Train ``model`` with what was measured of ``workloads`` and of their likes."""
        keys = {key for workload in workloads for key in (exact_key(workload), *self._alike(workload))}
        for key in sorted(keys & set(self._records)):
            records = _schedules(self._records[key])[-_LESSONS:]
            pairs = [(replayed(record, target), list(map(float, record.run_secs))) for record in records]
            measured = [(sch, runs) for sch, runs in pairs if sch is not None]
            if measured:
                teach(model, TuneContext(records[0].workload.mod, target=target), measured)

    def _alike(self, workload: tvm.IRModule) -> list[str]:
        own_key, own_kind = exact_key(workload), _kind(workload)
        return [key for key, kind in self._kinds.items() if kind == own_kind and key != own_key][-_LIKES:]


def replayed(record: TuningRecord, target: tvm.target.Target) -> s_tir.Schedule | None:
    """The schedule of ``record``; ``None`` if it no longer applies."""
    workload = record.workload.mod
    sch = s_tir.Schedule(workload, error_render_level="none")
    try:
        with target:
            record.trace.apply_to_schedule(sch, remove_postproc=False)
    except REFUSALS:
        return None
    return sch


def teach(model: CostModel, context: TuneContext, measured: Sequence[tuple[s_tir.Schedule, Sequence[float]]]) -> None:
    """Tell ``model`` the run times of schedules of the context's function; none for one that failed."""
    candidates = [MeasureCandidate(sch, ArgInfo.from_entry_func(sch.mod, True)) for sch, _ in measured]
    results = [RunnerResult(list(runs) or None, None if runs else "failed") for _, runs in measured]
    model.update(context, candidates, results)


def _schedules(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    return [record for record in records if succeeded(record) and not is_default(record.trace)]


def _kind(workload: tvm.IRModule) -> tuple[object, ...]:
    """What likes have in common: the reductions of the function (all its blocks, if it has none), but for sizes."""
    blocks = [block for block in nodes(workload["main"].body) if isinstance(block, tirx.SBlock) and block.iter_vars]
    reductions = [block for block in blocks if "R" in iterator_kinds(block)]
    return tuple(
        (iterator_kinds(block), len(block.reads), *(str(region.buffer.dtype) for region in block.writes))
        for block in reductions or blocks
    )
