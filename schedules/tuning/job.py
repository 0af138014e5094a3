"""The tuning job: baselines first, then rounds of candidates for the task that promises most, then symbolic sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace

from tkc.kernels.target import Target
from tkc.schedules.database import FAILED_SECONDS
from tkc.schedules.default_record import default_trace, is_default
from tkc.schedules.estimate import estimated_seconds, parameter_bytes
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.tuning import tensor_instructions
from tkc.schedules.tuning.background import Background, TimeIsUpError
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
from tkc.schedules.tuning.tasks import Extraction, Function, Skipped, Task

_ROUND = 16
# A task that takes less than this of the model's time gains nothing that anyone could measure.
_LEAST_SHARE = 0.001
# MetaSchedule's own model guesses for the first 100 candidates; the ranking helps much earlier.
_WARMUP = 2 * _ROUND
# How much of its minutes a job leaves at most for trying schedules at every size.
_MOST_RESERVED = 0.25
# How much of what is left of them it takes at most for measuring the default schedules, and for measuring copies.
_MOST_DEFAULTS = 0.5
_MOST_COPYING = 0.05
# If importing the model takes as much of the minutes, the job's end says so.
_LARGE_SHARE = 0.25
# How many of a size's best schedules are tried at the other sizes.
_FINALISTS = 3

Observer = Callable[[Progress], None]
Result = TypeVar("Result")


class NothingToTuneError(ValueError):
    """A model without functions that tuning could make faster; the message counts the reasons."""


class TuningJob:
    """A job over the tasks of ``extraction``, for ``target``.

    ``measurer`` measures, ``records`` are read for what is known and get what is measured, each as soon as it is. The
    job's own ``state_file`` counts what is spent: with ``resume``, on top of what it says. ``observer`` is called after
    every trial. Minutes count from ``started`` (of ``time.monotonic``; now, if it is left out), and what then is under
    way is killed, or left behind in ``background``. ``prepared`` are the seconds that the import took (until now, if it
    is left out).
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
        started: float | None = None,
        background: Background | None = None,
        prepared: float | None = None,
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
        self._background = background or Background()
        self._activity = "starting"
        self._clock = time.monotonic() if started is None else started
        self._deadline = budget.deadline(self._clock, self._state.seconds)
        self._prepared = time.monotonic() - self._clock if prepared is None else prepared
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
        self._functions = self._costliest_first()
        self._history = History(())
        self._symbolic = SymbolicSizes(target, tvm_target, measurer, records, lambda mod: self._history.of(mod))
        self._searches: dict[str, Search] = {}
        self._measuring_seconds = 0.0  # of the rounds, for ``_measured`` programs
        self._measured = 0
        self._thinking = 0.0  # what the last candidates took to be found
        self._finalists: dict[str, list[tuple[float, Trace]]] = {key: [] for key in extraction.tasks}

    def run(self) -> Progress:
        """Tune until the budget is spent or nothing is left to try.

        Raises :class:`NothingToTuneError`, and :class:`TimeIsUpError` if the minutes are over before anything is
        measured.
        """
        if not self._extraction.tasks:
            raise NothingToTuneError(_nothing_to_tune(self._skipped))
        try:
            stopped = self._tune()
        except TimeIsUpError:
            if all(task.best is None for task in self._progress.values()):
                raise
            stopped = self._budget.over
        finally:
            self._save()
        self._take_figures_of_symbolic_functions()
        if self._budget.minutes is not None and self._prepared > _LARGE_SHARE * 60 * self._budget.minutes:
            stopped += f" ({self._prepared:.0f} s of them went into importing the model)"
        self._activity = "done"
        final = self.progress(stopped)
        self._notify(final)
        return final

    def _tune(self) -> str:
        """All phases; why they ended. Raises :class:`TimeIsUpError` where the minutes end inside of one."""
        self._begin("reading records")
        tensor_instructions.register(self._target)
        self._history = self._within(lambda: History(self._records.all()))
        self._measure_baselines()
        self._measure_copies()
        standings = self._standings()
        if not standings:
            raise NothingToTuneError(_nothing_to_tune(self._skipped))
        self._begin("learning from records")
        model = XGBModel(num_warmup_samples=_WARMUP, num_tuning_cores=os.cpu_count())
        workloads = [self._extraction.tasks[key].workload for key in standings]
        self._within(lambda: self._history.teach(model, workloads, self._tvm_target))
        # Time was left for trying what is found at every size; what that does not take is searched in, too.
        stopped = self._search(standings, model, leave_time=True)
        self._try_at_every_size(self._functions, _FINALISTS)
        if self._deadline is not None and self._budget.spent(self._trials, 0.0, self._state.curve) is None:
            stopped = self._search(standings, model, leave_time=False)
        return stopped

    def _within(self, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which no deadline can stop; :class:`TimeIsUpError` if it is not there in time."""
        return self._background.run(work, self._deadline)

    def _begin(self, activity: str) -> None:
        if activity != self._activity:
            self._activity = activity
            self._notify()

    def _costliest_first(self) -> list[Function]:
        """The functions of the model, in the order in which they are worth a short time."""

        def seconds(function: Function) -> float:
            largest = max((self._extraction.tasks[key] for key in function.task_keys), key=_estimated)
            return function.calls * _estimated(largest)

        def _estimated(task: Task) -> float:
            return estimated_seconds(task.func, self._tvm_target)

        return sorted(self._extraction.functions, key=seconds, reverse=True)

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
        """How fast a copy would move each task's bytes: how near its limit a function is that computes little.

        In a part of the minutes alone, those of the tasks that take longest first.
        """
        if _is_over(self._deadline):
            return
        self._begin("measuring copies")
        tasks_of: dict[float, list[str]] = {}
        for key in sorted(self._progress, key=lambda key: -self._progress[key].seconds):
            tasks_of.setdefault(parameter_bytes(self._extraction.tasks[key].func), []).append(key)
        sizes = list(tasks_of)
        programs = [copy_program(size, self._target, self._tvm_target) for size in sizes]
        for index, measurement in self._measurer.measure(programs, self._after_share(_MOST_COPYING)):
            for key in tasks_of[sizes[index]] if measurement.error is None else ():
                self._progress[key] = replace(self._progress[key], copy=min(measurement.seconds))
            self._notify()

    def _measure_baselines(self) -> None:
        """Every task under the default rules, and then the symbolic functions at each of their sizes: what tuning must
        beat, and what it never ends worse than. Functions that may take most of the model's time come first; those that
        half of the minutes do not suffice for are left out.

        One that failed in an earlier job is measured again: it may have been the machine that was busy.
        """
        self._begin("measuring the default schedules")
        for key, task in self._extraction.tasks.items():
            for record in filter(succeeded, self._history.of(task.workload)):
                self._note(key, seconds_of(record), record.trace)
        share = self._after_share(_MOST_DEFAULTS)
        for group in self._groups():
            until = share if any(task.best for task in self._progress.values()) else self._deadline
            if _is_over(until):
                break
            keys = dict.fromkeys(key for function in group for key in function.task_keys)
            self._measure_defaults([key for key in keys if self._progress[key].baseline is None], until)
            for _ in self._symbolic.measure([(each, ()) for each in group if each.is_symbolic], until):
                self._notify()
        unreached = {key for key, task in self._progress.items() if task.best is None and not task.exhausted}
        for key in unreached:
            self._skip(key, "no time was left to measure its default schedule")
        if unreached == self._progress.keys():
            raise TimeIsUpError
        if not self._state.curve:
            self._state.curve.append(Point(0, self.progress().gain))
        self._save()

    def _groups(self) -> Iterator[list[Function]]:
        """The functions, as many at a time as keep all cores busy with building."""
        group: list[Function] = []
        for function in self._functions:
            group.append(function)
            if sum(len(each.sizes) for each in group) >= (os.cpu_count() or 1):
                yield group
                group = []
        if group:
            yield group

    def _after_share(self, share: float) -> float | None:
        """When that part of the time that is left is over."""
        now = time.monotonic()
        return None if self._deadline is None else now + share * max(self._deadline - now, 0.0)

    def _measure_defaults(self, keys: Sequence[str], until: float | None) -> None:
        programs = [self._default_program(self._extraction.tasks[key]) for key in keys]
        for index, measurement in self._measurer.measure(programs, until):
            key = keys[index]
            task = self._extraction.tasks[key]
            trace = default_trace(task.workload)
            self._commit(task, trace, measurement)
            if measurement.error is None:
                self._note(key, median(measurement.seconds), trace)
            else:
                self._skip(key, f"its default schedule cannot be measured: {measurement.error}")
            self._notify()

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

    def _search(self, standings: dict[str, Standing], model: XGBModel, leave_time: bool) -> str:
        """Rounds of trials until the budget is spent or every task exhausted; which of them it was.

        With ``leave_time``, of the minutes those are left in which to try everything that was found at every size.
        """
        self._begin("searching")
        while (spent := self._spent(self._state.curve, leave_time)) is None:
            key = next_task(standings.items())
            if key is None:
                return "there is nothing left to try"
            search = self._search_of(key, model)
            if search is None:
                del standings[key]
                continue
            found = self._best(key)
            self._round(key, search, leave_time)
            if self._best(key) is not found:
                # At once, so that a job may end whenever it likes: compilations look for records of the function.
                self._try_at_every_size([each for each in self._functions if key in each.task_keys], 1)
                self._begin("searching")
            standings[key].finished_round(self._progress[key].seconds)
            standings[key].exhausted = search.exhausted
            self._progress[key] = replace(self._progress[key], exhausted=search.exhausted)
            self._state.rounds[key] = standings[key].rounds
        return spent

    def _best(self, key: str) -> Trace | None:
        return self._finalists[key][0][1] if self._finalists[key] else None

    def _search_of(self, key: str, model: XGBModel) -> Search | None:
        if key not in self._searches:
            task = self._extraction.tasks[key]
            own, likes = self._history.of(task.workload), self._history.likes(task.workload)
            # A resumed search must not repeat the samples of the first.
            seed = (int(key, 16) + self._state.rounds.get(key, 0)) % (2**31 - 1) + 1
            threads = os.cpu_count() or 1
            try:
                self._searches[key] = self._within(
                    lambda: Search(task.workload, self._tvm_target, model, own, likes, seed, threads)
                )
            except ValueError as refusal:
                self._skip(key, str(refusal))
                return None
        return self._searches[key]

    def _spent(self, curve: Sequence[Point], leave_time: bool = True) -> str | None:
        """Why the search must end, if it must: it leaves time to try what it found at every size."""
        return self._budget.spent(self._trials, self._seconds + self._reserved(leave_time), curve)

    def _reserved(self, leave_time: bool) -> float:
        """The seconds that finding the next candidates, trying what was found at every size, and the job's end take."""
        return self._budget.closing_seconds + (self._time_for_sizes() + self._thinking if leave_time else 0.0)

    def _time_for_sizes(self) -> float:
        return min(self._each * self._symbolic_programs(), _MOST_RESERVED * 60 * (self._budget.minutes or 0.0))

    @property
    def _each(self) -> float:
        """The seconds that a program takes to be built and measured, as far as is known."""
        return self._measuring_seconds / self._measured if self._measured else 0.0

    def _symbolic_programs(self) -> int:
        """How many programs there are to measure for what was found and not tried at every size."""
        return sum(
            self._symbolic.missing(function, self._found(function, _FINALISTS))
            for function in self._functions
            if function.is_symbolic
        )

    def _found(self, function: Function, count: int) -> list[Trace]:
        """The best schedules of each of the function's sizes."""
        return [trace for key in function.task_keys for _, trace in self._finalists[key][:count]]

    def _round(self, key: str, search: Search, leave_time: bool) -> None:
        task = self._extraction.tasks[key]
        count = _ROUND if self._budget.trials is None else min(_ROUND, self._budget.trials - self._trials)
        until = self._end_of_round(key, leave_time)
        if until is not None and self._each:  # what is only built when the time is over is lost
            count = max(1, min(count, int((until - time.monotonic() - self._thinking) / self._each)))
        start = time.monotonic()
        candidates = self._within(lambda: search.candidates(count))
        self._thinking = time.monotonic() - start
        start = time.monotonic()
        arguments = arguments_of(task.workload["main"])
        measured = []
        programs = [Program(sch.mod["main"], arguments) for sch in candidates]
        for index, measurement in self._measurer.measure(programs, until):
            trace = candidates[index].trace
            self._commit(task, trace, measurement)
            measured.append((candidates[index], measurement))
            if measurement.error is None:
                self._note(key, median(measurement.seconds), trace)
            self._count_trial(key, measurement.error is not None)
            if self._spent((), leave_time) is not None:
                return
        self._measuring_seconds += time.monotonic() - start
        self._measured += len(measured)
        self._within(lambda: search.learn(measured))

    def _end_of_round(self, key: str, leave_time: bool) -> float | None:
        """When measuring candidates must end, so that the best of them can still be tried at every size."""
        if self._deadline is None:
            return None
        if leave_time:
            return self._deadline - self._time_for_sizes()
        sizes = (len(each.sizes) for each in self._functions if each.is_symbolic and key in each.task_keys)
        return self._deadline - self._each * max(sizes, default=0)

    def _try_at_every_size(self, functions: Sequence[Function], count: int) -> None:
        """The best ``count`` schedules of each size of the symbolic ones of ``functions``, at all of its sizes."""
        symbolic = [function for function in functions if function.is_symbolic]
        if not symbolic:
            return
        self._begin("trying schedules at every size")
        for function in symbolic:
            if _is_over(self._deadline):
                break
            for _ in self._symbolic.measure([(function, self._found(function, count))], self._deadline):
                self._notify()
        self._save()

    def _take_figures_of_symbolic_functions(self) -> None:
        """A compilation has the symbolic function, and not what it is at one size."""
        symbolic = [function for function in self._functions if function.is_symbolic]
        for function in symbolic:
            for key, default, best in self._symbolic.best(function):
                self._progress[key] = replace(self._progress[key], baseline=default, best=best)
        if symbolic:
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


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _nothing_to_tune(skipped: Sequence[Skipped]) -> str:
    reasons: dict[str, int] = {}
    for each in skipped:
        reasons[each.reason] = reasons.get(each.reason, 0) + 1
    listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
    return f"the model has nothing to tune: {listed or 'no functions are generated for it'}"
