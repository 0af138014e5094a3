"""The tuning job: baselines first, then rounds of candidates for the task that promises most, then symbolic sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace

from tkc.kernels.target import Target
from tkc.schedules.database import FAILED_SECONDS
from tkc.schedules.default_record import default_trace, is_default
from tkc.schedules.estimate import parameter_bytes
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.tuning import tensor_instructions
from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.copy_program import copy_program
from tkc.schedules.tuning.history import History
from tkc.schedules.tuning.measurement import Measurement, Measurer, Program, arguments_of
from tkc.schedules.tuning.progress import Point, Progress, TaskProgress
from tkc.schedules.tuning.records import Records, seconds_of, succeeded
from tkc.schedules.tuning.scheduler import Standing, next_task
from tkc.schedules.tuning.search import Search
from tkc.schedules.tuning.state import JobState, StateFile
from tkc.schedules.tuning.symbolic import SymbolicSizes
from tkc.schedules.tuning.tasks import Extraction, Skipped, Task

_ROUND = 16
# A task that takes less than this of the model's time gains nothing that anyone could measure.
_LEAST_SHARE = 0.001
# MetaSchedule's own model guesses for the first 100 candidates; the ranking helps much earlier.
_WARMUP = 2 * _ROUND
# How much of its time a job leaves at most for trying schedules at every size.
_MOST_RESERVED = 0.25
# How many of a size's best schedules are tried at the other sizes.
_FINALISTS = 3

Observer = Callable[[Progress], None]


class NothingToTuneError(ValueError):
    """A model without functions that tuning could make faster; the message counts the reasons."""


class TuningJob:
    """A job over the tasks of ``extraction``, for ``target``.

    ``measurer`` measures, ``records`` are read for what is known and get what is measured, each as soon as it is. The
    job's own ``state_file`` counts what is spent: with ``resume``, on top of what it says. ``observer`` is called after
    every trial.
    """

    def __init__(
        self,
        extraction: Extraction,
        target: Target,
        tvm_target: tvm.target.Target,
        measurer: Measurer,
        records: Records,
        budget: Budget,
        state_file: StateFile,
        resume: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._extraction = extraction
        self._target = target
        self._tvm_target = tvm_target
        self._measurer = measurer
        self._records = records
        self._budget = budget
        self._state_file = state_file
        self._state = state_file.load() if resume else JobState()
        self._observer = observer
        self._activity = "reading records"
        self._clock = time.monotonic()
        self._skipped = list(extraction.skipped)
        self._progress = {
            key: TaskProgress(
                task.name,
                task.weight,
                trials=self._state.trials.get(key, 0),
                failed=self._state.failed.get(key, 0),
            )
            for key, task in extraction.tasks.items()
        }
        self._searches: dict[str, Search] = {}
        self._measuring_seconds = 0.0  # of the rounds, for ``_measured`` programs
        self._measured = 0
        self._finalists: dict[str, list[tuple[float, Trace]]] = {key: [] for key in extraction.tasks}

    def run(self) -> Progress:
        """Tune until the budget is spent or nothing is left to try.

        Raises :class:`NothingToTuneError`.
        """
        if not self._extraction.tasks:
            raise NothingToTuneError(_nothing_to_tune(self._skipped))
        self._notify()
        tensor_instructions.register(self._target)
        self._measure_copies()
        history = History(self._records.all())
        self._measure_baselines(history)
        standings = self._standings()
        if not standings:
            raise NothingToTuneError(_nothing_to_tune(self._skipped))
        self._activity = "learning from records"
        self._notify()
        model = XGBModel(num_warmup_samples=_WARMUP, num_tuning_cores=os.cpu_count())
        history.teach(model, (self._extraction.tasks[key].workload for key in standings), self._tvm_target)
        stopped = self._search(standings, history, model)
        self._measure_symbolic(history)
        self._activity = "done"
        final = self.progress(stopped)
        self._notify(final)
        return final

    def progress(self, stopped: str | None = None) -> Progress:
        """How far the job is."""
        return Progress(
            activity=self._activity,
            tasks=tuple(self._progress.values()),
            trials=self._trials,
            seconds=self._seconds,
            curve=tuple(self._state.curve),
            skipped=tuple(self._skipped),
            stopped=stopped,
        )

    @property
    def _trials(self) -> int:
        return sum(self._state.trials.values())

    @property
    def _seconds(self) -> float:
        return self._state.seconds + time.monotonic() - self._clock

    def _measure_copies(self) -> None:
        """How fast a copy would move each task's bytes: how near its limit a function is that computes little."""
        self._activity = "measuring copies"
        tasks_of: dict[float, list[str]] = {}
        for key, task in self._extraction.tasks.items():
            tasks_of.setdefault(parameter_bytes(task.func), []).append(key)
        sizes = list(tasks_of)
        programs = [copy_program(size, self._target, self._tvm_target) for size in sizes]
        for index, measurement in self._measurer.measure(programs):
            for key in tasks_of[sizes[index]] if measurement.error is None else ():
                self._progress[key] = replace(self._progress[key], copy=min(measurement.seconds))

    def _measure_baselines(self, history: History) -> None:
        """Every task under the default rules: what tuning must beat, and what it never ends worse than.

        One that failed in an earlier job is measured again: it may have been the machine that was busy.
        """
        self._activity = "measuring the default schedules"
        missing: list[str] = []
        for key, task in self._extraction.tasks.items():
            for record in filter(succeeded, history.of(task.workload)):
                self._note(key, seconds_of(record), record.trace)
            if self._progress[key].baseline is None:
                missing.append(key)
        programs = [self._default_program(self._extraction.tasks[key]) for key in missing]
        for index, measurement in self._measurer.measure(programs):
            key = missing[index]
            task = self._extraction.tasks[key]
            trace = default_trace(task.workload)
            self._commit(task, trace, measurement)
            if measurement.error is None:
                self._note(key, median(measurement.seconds), trace)
            else:
                self._skip(key, f"its default schedule cannot be measured: {measurement.error}")
            self._notify()
        if not self._state.curve:
            self._state.curve.append(Point(0, self.progress().gain))
        self._save()

    def _default_program(self, task: Task) -> Program:
        default = schedule_by_rules(task.func, self._target, self._tvm_target)
        return Program(default.scheduled, arguments_of(task.workload["main"]))

    def _standings(self) -> dict[str, Standing]:
        total = sum(task.seconds for task in self._progress.values())
        standings: dict[str, Standing] = {}
        for key, task in list(self._progress.items()):
            if task.best is None:
                continue
            if task.seconds < _LEAST_SHARE * total:
                self._skip(key, f"less than {_LEAST_SHARE:.1%} of the model's time")
            else:
                standings[key] = Standing(task.seconds, rounds=self._state.rounds.get(key, 0))
        return standings

    def _search(self, standings: dict[str, Standing], history: History, model: XGBModel) -> str:
        """Rounds of trials until the budget is spent or every task exhausted; which of them it was."""
        self._activity = "searching"
        while (spent := self._spent(self._state.curve)) is None:
            key = next_task(standings.items())
            if key is None:
                return "there is nothing left to try"
            search = self._search_of(key, history, model)
            if search is None:
                del standings[key]
                continue
            self._round(key, search)
            standings[key].finished_round(self._progress[key].seconds)
            standings[key].exhausted = search.exhausted
            self._progress[key] = replace(self._progress[key], exhausted=search.exhausted)
            self._state.rounds[key] = standings[key].rounds
        return spent

    def _search_of(self, key: str, history: History, model: XGBModel) -> Search | None:
        if key not in self._searches:
            task = self._extraction.tasks[key]
            own, likes = history.of(task.workload), history.likes(task.workload)
            # A resumed search must not repeat the samples of the first.
            seed = (int(key, 16) + self._state.rounds.get(key, 0)) % (2**31 - 1) + 1
            threads = os.cpu_count() or 1
            try:
                self._searches[key] = Search(task.workload, self._tvm_target, model, own, likes, seed, threads)
            except ValueError as refusal:
                self._skip(key, str(refusal))
                return None
        return self._searches[key]

    def _spent(self, curve: Sequence[Point]) -> str | None:
        """Why the search must end, if it must: it leaves time to try what it found at every size."""
        each = self._measuring_seconds / self._measured if self._measured else 0.0
        reserved = min(each * self._symbolic_programs(), _MOST_RESERVED * 60 * (self._budget.minutes or 0.0))
        return self._budget.spent(self._trials, self._seconds + reserved, curve)

    def _symbolic_programs(self) -> int:
        """How many programs :meth:`_measure_symbolic` would measure now, if it knew none."""
        return sum(
            len(function.sizes) * (1 + sum(len(self._finalists[key]) for key in function.task_keys))
            for function in self._extraction.functions
            if function.is_symbolic
        )

    def _round(self, key: str, search: Search) -> None:
        task = self._extraction.tasks[key]
        count = _ROUND if self._budget.trials is None else min(_ROUND, self._budget.trials - self._trials)
        candidates = search.candidates(count)
        start = time.monotonic()
        arguments = arguments_of(task.workload["main"])
        measured = []
        for index, measurement in self._measurer.measure([Program(sch.mod["main"], arguments) for sch in candidates]):
            trace = candidates[index].trace
            self._commit(task, trace, measurement)
            measured.append((candidates[index], measurement))
            if measurement.error is None:
                self._note(key, median(measurement.seconds), trace)
            self._count_trial(key, measurement.error is not None)
            if self._spent(()) is not None:
                return
        self._measuring_seconds += time.monotonic() - start
        self._measured += len(candidates)
        search.learn(measured)

    def _measure_symbolic(self, history: History) -> None:
        symbolic = [function for function in self._extraction.functions if function.is_symbolic]
        if not symbolic:
            return
        self._activity = "trying schedules at every size"
        self._notify()
        sizes = SymbolicSizes(self._target, self._tvm_target, self._measurer, self._records)
        for function in symbolic:
            for key, default, best in sizes.measure(function, self._finalists, history.of(function.workload)):
                # Shared with a static function, the task keeps the static one's figures.
                self._progress[key] = replace(self._progress[key], baseline=default, best=best)
                self._notify()
        self._state.curve.append(Point(self._trials, self.progress().gain))
        self._save()

    def _note(self, key: str, seconds: float, trace: Trace) -> None:
        """The task has a schedule that takes ``seconds``."""
        task = self._progress[key]
        if is_default(trace):
            task = replace(task, baseline=min(seconds, task.baseline or seconds))
        else:
            ranked = sorted([*self._finalists[key], (seconds, trace)], key=lambda item: item[0])
            self._finalists[key] = ranked[:_FINALISTS]
        self._progress[key] = replace(task, best=min(seconds, task.best or seconds))

    def _count_trial(self, key: str, failed: bool) -> None:
        self._state.trials[key] = self._state.trials.get(key, 0) + 1
        self._state.failed[key] = self._state.failed.get(key, 0) + failed
        task = replace(self._progress[key], trials=self._state.trials[key], failed=self._state.failed[key])
        self._progress[key] = task
        self._state.curve.append(Point(self._trials, self.progress().gain))
        self._save()
        self._notify()

    def _commit(self, task: Task, trace: Trace, measurement: Measurement) -> None:
        runs = list(measurement.seconds) or [FAILED_SECONDS]
        args_info = ArgInfo.from_entry_func(task.workload, True)
        record = TuningRecord(trace, Workload(task.workload), runs, self._tvm_target, args_info)
        self._records.commit(record, measurement.error)

    def _skip(self, key: str, reason: str) -> None:
        """Search for no schedule of the task; its time still counts."""
        self._skipped.append(Skipped(self._progress[key].name, reason))
        self._progress[key] = replace(self._progress[key], exhausted=True)

    def _save(self) -> None:
        now = time.monotonic()
        self._state.seconds += now - self._clock
        self._clock = now
        self._state_file.save(self._state)

    def _notify(self, progress: Progress | None = None) -> None:
        if self._observer is not None:
            self._observer(progress or self.progress())


def _nothing_to_tune(skipped: Sequence[Skipped]) -> str:
    reasons: dict[str, int] = {}
    for each in skipped:
        reasons[each.reason] = reasons.get(each.reason, 0) + 1
    listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
    return f"the model has nothing to tune: {listed or 'no functions are generated for it'}"
