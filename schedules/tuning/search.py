"""Candidates for one task: MetaSchedule's evolutionary search, started from what is known of it and its likes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from statistics import median

import tvm
from tvm import s_tir
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.cost_model import CostModel
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.meta_schedule.trace_apply import schedule_using_anchor_trace
from tvm.s_tir.schedule import Trace

from tkc.schedules.database import exact_key
from tkc.schedules.default_record import is_default
from tkc.schedules.refusals import REFUSALS
from tkc.schedules.tuning.history import replayed, teach
from tkc.schedules.tuning.measurement import Measurement
from tkc.schedules.tuning.records import seconds_of, succeeded

_POPULATION = 256
# Of the population, what comes from the best measured schedules; of the candidates, what no cost model chooses.
_MEASURED_SHARE = 0.2
_RANDOM_SHARE = 0.1
# A search that finds nothing new this many times in a row has seen its space.
_EMPTY_ROUNDS = 3

_sample = tvm.get_global_func("s_tir.meta_schedule.SearchStrategyEvolutionarySearchSampleInitPopulation")
_evolve = tvm.get_global_func("s_tir.meta_schedule.SearchStrategyEvolutionarySearchEvolveWithCostModel")

_quiet = logging.getLogger("tkc.tuning.metaschedule")
_quiet.setLevel(logging.CRITICAL)


class Search:
    """The search for a schedule of ``workload`` (a module of one function, ``main``).

    ``model`` ranks candidates, and is shared by the searches of a job, so that they learn from one another. What
    ``own``, the records of ``workload``, tried is never proposed again, and breeds new candidates; ``likes``, records
    of workloads like it, make the first ones. Raises :class:`ValueError` if MetaSchedule has no schedules for it.
    """

    def __init__(
        self,
        workload: tvm.IRModule,
        target: tvm.target.Target,
        model: CostModel,
        own: Iterable[TuningRecord],
        likes: Iterable[TuningRecord],
        seed: int,
        threads: int,
    ) -> None:
        self._workload = workload
        self._target = target
        self._model = model
        self._strategy = EvolutionarySearch(population_size=_POPULATION)
        self._context = TuneContext(
            workload,
            target=target,
            space_generator="post-order-apply",
            search_strategy=self._strategy,
            rand_state=seed,
            num_threads=threads,
            logger=_quiet,
        )
        self._spaces = self._design_spaces(target)
        # MetaSchedule's own count and database play no part: what was measured is known here.
        self._context.pre_tuning(1 << 30, _POPULATION, self._spaces, MemoryDatabase(), model)
        self._known: set[str] = set()
        self._measured: list[tuple[float, Trace]] = []
        self._learn_records(own)
        self._starts = self._started_from(likes)
        self._empty_rounds = 0

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing left to propose."""
        return self._empty_rounds >= _EMPTY_ROUNDS

    def candidates(self, count: int) -> list[s_tir.Schedule]:
        """At most ``count`` schedules that were not proposed before, and of which there is no record."""
        found = self._new(self._starts, count // 2)
        self._starts = []
        unmeasured = list(_sample(self._strategy, _POPULATION - min(len(self._measured), self._bred)))
        population = [*self._best_measured(), *unmeasured]
        if population:
            random_ones = round(count * _RANDOM_SHARE)
            evolved = list(_evolve(self._strategy, population, count))
            found += self._new(evolved, count - len(found) - random_ones)
            found += self._new(unmeasured, count - len(found))
        self._empty_rounds = 0 if found else self._empty_rounds + 1
        return found

    def learn(self, measured: Sequence[tuple[s_tir.Schedule, Measurement]]) -> None:
        """What the candidates took, for the model and the next candidates."""
        for sch, measurement in measured:
            if measurement.seconds:
                self._measured.append((median(measurement.seconds), sch.trace))
        self._measured.sort(key=lambda item: item[0])
        teach(self._model, self._context, [(sch, list(measurement.seconds)) for sch, measurement in measured])

    @property
    def _bred(self) -> int:
        return round(_POPULATION * _MEASURED_SHARE)

    def _design_spaces(self, target: tvm.target.Target) -> list[s_tir.Schedule]:
        try:
            with target:
                spaces = list(self._context.generate_design_space())
        except REFUSALS as refusal:
            raise ValueError("MetaSchedule has no schedules for it") from refusal
        if not any(_is_sampled(space.trace) for space in spaces):
            raise ValueError("MetaSchedule has one schedule for it, without choices")
        return spaces

    def _learn_records(self, records: Iterable[TuningRecord]) -> None:
        for record in records:
            sch = replayed(record, self._target)
            if sch is None:
                continue
            self._known.add(exact_key(sch.mod))
            if succeeded(record) and not is_default(record.trace):
                self._measured.append((seconds_of(record), record.trace))
        self._measured.sort(key=lambda item: item[0])

    def _best_measured(self) -> list[s_tir.Schedule]:
        attempts = (self._processed(trace) for _, trace in self._measured[: self._bred])
        return [sch for sch in attempts if sch is not None]

    def _started_from(self, records: Iterable[TuningRecord]) -> list[s_tir.Schedule]:
        attempts = (self._processed(record.trace) or self._by_anchor(record.trace) for record in records)
        return [sch for sch in attempts if sch is not None]

    def _processed(self, trace: Trace) -> s_tir.Schedule | None:
        """The decisions of ``trace`` on this workload, where they fit, with the postprocessing that it asks for."""
        sch = s_tir.Schedule(self._workload, error_render_level="none")
        try:
            with self._target:
                trace.apply_to_schedule(sch, remove_postproc=True)
                sch.enter_postproc()
                fits = all(process.apply(sch) for process in self._context.space_generator.postprocs)
        except REFUSALS:
            return None
        return sch if fits else None

    def _by_anchor(self, trace: Trace) -> s_tir.Schedule | None:
        sch = s_tir.Schedule(self._workload, error_render_level="none")
        try:
            with self._target:
                schedule_using_anchor_trace(sch, trace, self._target)
        except REFUSALS:
            return None
        return sch

    def _new(self, schedules: Iterable[s_tir.Schedule], count: int) -> list[s_tir.Schedule]:
        found: list[s_tir.Schedule] = []
        for sch in schedules:
            if len(found) >= count:
                break
            key = exact_key(sch.mod)
            if key not in self._known:
                self._known.add(key)
                found.append(sch)
        return found


def _is_sampled(trace: Trace) -> bool:
    return any(instruction.kind.name.startswith("Sample") for instruction in trace.insts)
