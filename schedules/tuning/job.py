"""The tuning job: baselines first, then rounds of candidates for the task that promises most, then symbolic sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import tvm
from tvm.s_tir.meta_schedule.cost_model import XGBModel

from tkc.kernels.target import Target
from tkc.schedules.estimate import estimated_seconds
from tkc.schedules.tuning import tensor_instructions
from tkc.schedules.tuning.background import Background, TimeIsUpError
from tkc.schedules.tuning.baselines import Baselines
from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.history import History
from tkc.schedules.tuning.ledger import FINALISTS, Ledger, Observer
from tkc.schedules.tuning.measurement import Measurer
from tkc.schedules.tuning.progress import Progress
from tkc.schedules.tuning.recording import RecordingMeasurer
from tkc.schedules.tuning.records import Records
from tkc.schedules.tuning.rounds import WARMUP, Rounds
from tkc.schedules.tuning.scheduler import Standing
from tkc.schedules.tuning.state import StateFile
from tkc.schedules.tuning.symbolic import SymbolicSizes
from tkc.schedules.tuning.tasks import Extraction, Function, Task

# A task that takes less than this of the model's time gains nothing that anyone could measure.
_LEAST_SHARE = 0.001
# If importing the model takes as much of the minutes, the job's end says so.
_LARGE_SHARE = 0.25

Result = TypeVar("Result")


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
        started = time.monotonic() if started is None else started
        self.ledger = Ledger(extraction, budget, state_file, resume=resume, observer=observer, started=started)
        """What the job has found and spent."""
        self._tasks = extraction.tasks
        self._functions = _costliest_first(extraction, tvm_target)
        self._recording = RecordingMeasurer(target, tvm_target, measurer, records)
        self._background = background or Background()
        self._prepared = time.monotonic() - started if prepared is None else prepared
        self._history = History(())
        self._symbolic = SymbolicSizes(target, tvm_target, measurer, records, lambda mod: self._history.of(mod))
        parts = (self._tasks, self._functions, self._recording, self._symbolic, self.ledger)
        self._baselines = Baselines(*parts)
        self.rounds = Rounds(*parts, self._background)
        """The search for schedules."""

    def run(self) -> Progress:
        """Tune until the budget is spent or nothing is left to try.

        Raises :class:`NothingToTuneError`, and :class:`TimeIsUpError` if the minutes are over before anything is
        measured.
        """
        ledger = self.ledger
        if not self._tasks:
            raise ledger.nothing_to_tune()
        try:
            stopped = self._tune()
        except TimeIsUpError:
            if all(task.best is None for task in ledger.tasks.values()):
                raise
            stopped = ledger.budget.over
        finally:
            ledger.save()
        self._take_figures_of_symbolic_functions()
        minutes = ledger.budget.minutes
        if minutes is not None and self._prepared > _LARGE_SHARE * 60 * minutes:
            stopped += f" ({self._prepared:.0f} s of them went into importing the model)"
        return ledger.end(stopped)

    def _tune(self) -> str:
        """All phases; why they ended. Raises :class:`TimeIsUpError` where the minutes end inside of one."""
        ledger = self.ledger
        ledger.begin("reading records")
        tensor_instructions.register(self._recording.target)
        self._history = self._within(lambda: History(self._recording.records.all()))
        self._baselines.measure_defaults(self._history)
        self._baselines.measure_copies()
        standings = self._standings()
        if not standings:
            raise ledger.nothing_to_tune()
        ledger.begin("learning from records")
        model = XGBModel(num_warmup_samples=WARMUP, num_tuning_cores=os.cpu_count())
        workloads = [self._tasks[key].workload for key in standings]
        self._within(lambda: self._history.teach(model, workloads, self._recording.tvm_target))
        # Time was left for trying what is found at every size; what that does not take is searched in, too.
        stopped = self.rounds.search(standings, model, self._history, leave_time=True)
        self.rounds.try_at_every_size(self._functions, FINALISTS)
        if ledger.deadline is not None and ledger.budget.spent(ledger.trials, 0.0, ledger.state.curve) is None:
            stopped = self.rounds.search(standings, model, self._history, leave_time=False)
        return stopped

    def _within(self, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which no deadline can stop; :class:`TimeIsUpError` if it is not there in time."""
        return self._background.run(work, self.ledger.deadline)

    def _standings(self) -> dict[str, Standing]:
        """The tasks that are worth a search, with what they take; the others are skipped."""
        ledger = self.ledger
        total = sum(task.seconds for task in ledger.tasks.values())
        standings: dict[str, Standing] = {}
        for key, task in list(ledger.tasks.items()):
            if task.best is None:
                continue
            if task.seconds < _LEAST_SHARE * total:
                ledger.skip(key, f"less than {_LEAST_SHARE:.1%} of the model's time")
            else:
                standings[key] = Standing(task.seconds, rounds=ledger.state.rounds.get(key, 0))
        return standings

    def _take_figures_of_symbolic_functions(self) -> None:
        """A compilation has the symbolic function, and not what it is at one size."""
        symbolic = [function for function in self._functions if function.is_symbolic]
        if symbolic:
            figures = (each for function in symbolic for each in self._symbolic.best(function))
            self.ledger.take_figures({key: (default, best) for key, default, best in figures})


def _costliest_first(extraction: Extraction, tvm_target: tvm.target.Target) -> list[Function]:
    """The functions of the model, in the order in which they are worth a short time."""

    def seconds(function: Function) -> float:
        largest = max((extraction.tasks[key] for key in function.task_keys), key=estimated)
        return function.calls * estimated(largest)

    def estimated(task: Task) -> float:
        return estimated_seconds(task.func, tvm_target)

    return sorted(extraction.functions, key=seconds, reverse=True)
