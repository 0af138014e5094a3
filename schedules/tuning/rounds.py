"""The search of a tuning job: rounds of candidates for the task that promises most, and the best at every size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.schedule import Trace

from tkc.schedules.tuning.background import Background
from tkc.schedules.tuning.history import History
from tkc.schedules.tuning.ledger import FINALISTS, Ledger
from tkc.schedules.tuning.measurement import Program, arguments_of
from tkc.schedules.tuning.progress import Point
from tkc.schedules.tuning.recording import RecordingMeasurer
from tkc.schedules.tuning.scheduler import Standing, next_task
from tkc.schedules.tuning.search import Search
from tkc.schedules.tuning.symbolic import SymbolicSizes
from tkc.schedules.tuning.tasks import Function, Task

_ROUND = 16
# MetaSchedule's own model guesses for the first 100 candidates; the ranking helps much earlier.
WARMUP = 2 * _ROUND
# How much of its minutes a job leaves at most for trying schedules at every size.
_MOST_RESERVED = 0.25

Result = TypeVar("Result")


class Rounds:
    """Searches schedules of ``tasks``, and tries what it finds at every size of the symbolic ones of ``functions``."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        functions: Sequence[Function],
        recording: RecordingMeasurer,
        symbolic: SymbolicSizes,
        ledger: Ledger,
        background: Background,
    ) -> None:
        self._tasks = tasks
        self._functions = functions
        self._recording = recording
        self._symbolic = symbolic
        self._ledger = ledger
        self._background = background
        self._searches: dict[str, Search] = {}
        self._thinking = 0.0  # what the last candidates took to be found
        self.measuring_seconds = 0.0
        """What the rounds took for their :attr:`measured` programs."""
        self.measured = 0
        """How many programs the rounds have measured."""

    def search(self, standings: dict[str, Standing], model: XGBModel, history: History, leave_time: bool) -> str:
        """Rounds of trials until the budget is spent or every task exhausted; which of them it was.

        With ``leave_time``, of the minutes those are left in which to try everything that was found at every size.
        """
        ledger = self._ledger
        ledger.begin("searching")
        while (spent := self.spent(ledger.state.curve, leave_time)) is None:
            key = next_task(standings.items())
            if key is None:
                return "there is nothing left to try"
            search = self._search_of(key, model, history)
            if search is None:
                del standings[key]
                continue
            found = ledger.best(key)
            self._round(key, search, leave_time)
            if ledger.best(key) is not found:
                # At once, so that a job may end whenever it likes: compilations look for records of the function.
                self.try_at_every_size([each for each in self._functions if key in each.task_keys], 1)
                ledger.begin("searching")
            standings[key].finished_round(ledger.tasks[key].seconds)
            standings[key].exhausted = search.exhausted
            ledger.set_exhausted(key, search.exhausted)
            ledger.state.rounds[key] = standings[key].rounds
        return spent

    def try_at_every_size(self, functions: Sequence[Function], count: int) -> None:
        """The best ``count`` schedules of each size of the symbolic ones of ``functions``, at all of its sizes."""
        symbolic = [function for function in functions if function.is_symbolic]
        if not symbolic:
            return
        self._ledger.begin("trying schedules at every size")
        for function in symbolic:
            if self._ledger.is_over:
                break
            found = self._ledger.found(function, count)
            for _ in self._symbolic.measure([(function, found)], self._ledger.deadline):
                self._ledger.notify()
        self._ledger.save()

    def spent(self, curve: Sequence[Point], leave_time: bool = True) -> str | None:
        """Why the search must end, if it must: it leaves time to try what it found at every size."""
        ledger = self._ledger
        return ledger.budget.spent(ledger.trials, ledger.seconds + self._reserved(leave_time), curve)

    def _search_of(self, key: str, model: XGBModel, history: History) -> Search | None:
        """The search for schedules of a task, which is begun where it is not yet; ``None`` where there are none."""
        if key not in self._searches:
            task = self._tasks[key]
            own, likes = history.of(task.workload), history.likes(task.workload)
            # A resumed search must not repeat the samples of the first.
            seed = (int(key, 16) + self._ledger.state.rounds.get(key, 0)) % (2**31 - 1) + 1
            threads = os.cpu_count() or 1
            try:
                self._searches[key] = self._within(
                    lambda: Search(task.workload, self._recording.tvm_target, model, own, likes, seed, threads)
                )
            except ValueError as refusal:
                self._ledger.skip(key, str(refusal))
                return None
        return self._searches[key]

    def _round(self, key: str, search: Search, leave_time: bool) -> None:
        ledger, task = self._ledger, self._tasks[key]
        trials = ledger.budget.trials
        count = _ROUND if trials is None else min(_ROUND, trials - ledger.trials)
        until = self._end_of_round(key, leave_time)
        if until is not None and self._each:  # what is only built when the time is over is lost
            count = max(1, min(count, int((until - time.monotonic() - self._thinking) / self._each)))
        start = time.monotonic()
        schedules = self._within(lambda: search.candidates(count))
        self._thinking = time.monotonic() - start
        start = time.monotonic()
        arguments = arguments_of(task.workload["main"])
        candidates: list[tuple[Task, Trace, Program]] = [
            (task, sch.trace, Program(sch.mod["main"], arguments)) for sch in schedules
        ]
        measured = []
        for index, measurement in self._recording.measured(candidates, until):
            measured.append((schedules[index], measurement))
            if measurement.error is None:
                ledger.note(key, median(measurement.seconds), schedules[index].trace)
            ledger.count_trial(key, measurement.error is not None)
            if self.spent((), leave_time) is not None:
                return
        self.measuring_seconds += time.monotonic() - start
        self.measured += len(measured)
        self._within(lambda: search.learn(measured))

    def _within(self, work: Callable[[], Result]) -> Result:
        return self._background.run(work, self._ledger.deadline)

    def _end_of_round(self, key: str, leave_time: bool) -> float | None:
        """When measuring candidates must end, so that the best of them can still be tried at every size."""
        deadline = self._ledger.deadline
        if deadline is None:
            return None
        if leave_time:
            return deadline - self._time_for_sizes()
        sizes = (len(each.sizes) for each in self._functions if each.is_symbolic and key in each.task_keys)
        return deadline - self._each * max(sizes, default=0)

    def _reserved(self, leave_time: bool) -> float:
        """The seconds that finding the next candidates, trying what was found at every size, and the job's end take."""
        closing = self._ledger.budget.closing_seconds
        return closing + (self._time_for_sizes() + self._thinking if leave_time else 0.0)

    def _time_for_sizes(self) -> float:
        most = _MOST_RESERVED * 60 * (self._ledger.budget.minutes or 0.0)
        return min(self._each * self._symbolic_programs(), most)

    @property
    def _each(self) -> float:
        """The seconds that a program takes to be built and measured, as far as is known."""
        return self.measuring_seconds / self.measured if self.measured else 0.0

    def _symbolic_programs(self) -> int:
        """How many programs there are to measure for what was found and not tried at every size."""
        return sum(
            self._symbolic.missing(function, self._ledger.found(function, FINALISTS))
            for function in self._functions
            if function.is_symbolic
        )
