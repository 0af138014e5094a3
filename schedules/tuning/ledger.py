"""What a tuning job has found and spent: its tasks' times and best schedules, trials, seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm.s_tir.schedule import Trace

from tkc.schedules.default_record import is_default
from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.progress import Point, Progress, TaskProgress
from tkc.schedules.tuning.state import JobState, StateFile
from tkc.schedules.tuning.tasks import Extraction, Function, Skipped

FINALISTS = 3
"""How many of a size's best schedules are kept, to be tried at the other sizes."""

Observer = Callable[[Progress], None]


class NothingToTuneError(ValueError):
    """A model without functions that tuning could make faster; the message counts the reasons."""


class Ledger:
    """The books of a job over the tasks of ``extraction``, begun at ``started`` (of ``time.monotonic``).

    What is spent is written to ``state_file``, with ``resume`` on top of what it says. ``observer`` is told of news.
    """

    def __init__(
        self,
        extraction: Extraction,
        budget: Budget,
        state_file: StateFile,
        *,
        resume: bool,
        observer: Observer | None,
        started: float,
    ) -> None:
        self.budget = budget
        self.state = state_file.load() if resume else JobState()
        self.deadline = budget.deadline(started, self.state.seconds)
        """When the last measurement must end, of ``time.monotonic``; ``None`` without minutes."""
        self.tasks = {
            key: TaskProgress(
                task.name,
                task.weight,
                trials=self.state.trials.get(key, 0),
                failed=self.state.failed.get(key, 0),
            )
            for key, task in extraction.tasks.items()
        }
        self.finalists: dict[str, list[tuple[float, Trace]]] = {key: [] for key in extraction.tasks}
        """The best schedules of each task that are not the default, with their seconds, the fastest first."""
        self._skipped = list(extraction.skipped)
        self._state_file = state_file
        self._observer = observer
        self._activity = "starting"
        self._clock = started

    def progress(self, stopped: str | None = None) -> Progress:
        """How far the job is."""
        return Progress(
            activity=self._activity,
            tasks=tuple(self.tasks.values()),
            trials=self.trials,
            seconds=self.seconds,
            curve=tuple(self.state.curve),
            skipped=tuple(self._skipped),
            stopped=stopped,
        )

    @property
    def trials(self) -> int:
        """The candidates that were measured, in earlier runs of the job too."""
        return sum(self.state.trials.values())

    @property
    def seconds(self) -> float:
        """What the job has taken, its earlier runs included."""
        return self.state.seconds + time.monotonic() - self._clock

    @property
    def is_over(self) -> bool:
        """Whether the last measurement must have ended."""
        return is_over(self.deadline)

    def begin(self, activity: str) -> None:
        """Tell the observer of an ``activity`` that is not the present one."""
        if activity != self._activity:
            self._activity = activity
            self.notify()

    def end(self, stopped: str) -> Progress:
        """The progress at the end of the job, which ``stopped`` for that reason."""
        self._activity = "done"
        final = self.progress(stopped)
        self.notify(final)
        return final

    def best(self, key: str) -> Trace | None:
        """The fastest schedule of a task that is not the default."""
        return self.finalists[key][0][1] if self.finalists[key] else None

    def found(self, function: Function, count: int) -> list[Trace]:
        """The best ``count`` schedules of each of the function's sizes."""
        return [trace for key in function.task_keys for _, trace in self.finalists[key][:count]]

    def note(self, key: str, seconds: float, trace: Trace) -> None:
        """The task has a schedule that takes ``seconds``."""
        task = self.tasks[key]
        if is_default(trace):
            task = replace(task, baseline=min(seconds, task.baseline or seconds))
        else:
            ranked = sorted([*self.finalists[key], (seconds, trace)], key=lambda item: item[0])
            self.finalists[key] = ranked[:FINALISTS]
        self.tasks[key] = replace(task, best=min(seconds, task.best or seconds))

    def note_copy(self, key: str, seconds: float) -> None:
        """A copy of as many bytes as the task moves takes ``seconds``."""
        self.tasks[key] = replace(self.tasks[key], copy=seconds)

    def take_figures(self, figures: Mapping[str, tuple[float, float]]) -> None:
        """Have tasks take these seconds under the default rules, and these at best, whatever was noted of them."""
        for key, (baseline, best) in figures.items():
            self.tasks[key] = replace(self.tasks[key], baseline=baseline, best=best)
        self.add_point()
        self.save()

    def count_trial(self, key: str, failed: bool) -> None:
        """A candidate of the task was measured."""
        self.state.trials[key] = self.state.trials.get(key, 0) + 1
        self.state.failed[key] = self.state.failed.get(key, 0) + failed
        self.tasks[key] = replace(self.tasks[key], trials=self.state.trials[key], failed=self.state.failed[key])
        self.add_point()
        self.save()
        self.notify()

    def add_point(self) -> None:
        """Add what was gained so far to the curve."""
        self.state.curve.append(Point(self.trials, self.progress().gain))

    def skip(self, key: str, reason: str) -> None:
        """Search for no schedule of the task; its time still counts."""
        self._skipped.append(Skipped(self.tasks[key].name, reason))
        self.set_exhausted(key, True)

    def set_exhausted(self, key: str, exhausted: bool) -> None:
        """Say whether nothing is left to try for the task."""
        self.tasks[key] = replace(self.tasks[key], exhausted=exhausted)

    def nothing_to_tune(self) -> NothingToTuneError:
        """What is raised where nothing is searched for; its message counts why."""
        reasons: dict[str, int] = {}
        for each in self._skipped:
            reasons[each.reason] = reasons.get(each.reason, 0) + 1
        listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
        return NothingToTuneError(f"the model has nothing to tune: {listed or 'no functions are generated for it'}")

    def save(self) -> None:
        """Write what is spent."""
        now = time.monotonic()
        self.state.seconds += now - self._clock
        self._clock = now
        self._state_file.save(self.state)

    def notify(self, progress: Progress | None = None) -> None:
        """Tell the observer how far the job is."""
        if self._observer is not None:
            self._observer(progress or self.progress())


def is_over(until: float | None) -> bool:
    """Whether it is ``until`` (of ``time.monotonic``) or later; never for ``None``."""
    return until is not None and time.monotonic() >= until
