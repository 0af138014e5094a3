"""A tuning job's yardsticks: every task under the default rules, and as fast as a copy of its bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tkc.schedules.default_record import default_trace
from tkc.schedules.estimate import parameter_bytes
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.tuning.background import TimeIsUpError
from tkc.schedules.tuning.copy_program import copy_program
from tkc.schedules.tuning.history import History
from tkc.schedules.tuning.ledger import Ledger, is_over
from tkc.schedules.tuning.measurement import Program, arguments_of
from tkc.schedules.tuning.recording import RecordingMeasurer
from tkc.schedules.tuning.records import seconds_of, succeeded
from tkc.schedules.tuning.symbolic import SymbolicSizes
from tkc.schedules.tuning.tasks import Function, Task

# How much of the minutes that are left measuring the default schedules takes at most, and then measuring copies.
_MOST_DEFAULTS = 0.5
_MOST_COPYING = 0.05


@dataclass(frozen=True)
class Baselines:
    """Measures the yardsticks of ``tasks``, those of the first of ``functions`` first."""

    tasks: Mapping[str, Task]
    functions: Sequence[Function]
    recording: RecordingMeasurer
    symbolic: SymbolicSizes
    ledger: Ledger

    def measure_defaults(self, history: History) -> None:
        """Every task under the default rules, and then the symbolic functions at each of their sizes: what tuning must
        beat, and what it never ends worse than. Functions that may take most of the model's time come first; those that
        half of the minutes do not suffice for are left out. What ``history`` tells is not measured again, but for what
        failed: it may have been the machine that was busy.

        Raises :class:`TimeIsUpError` if nothing could be measured in time.
        """
        ledger = self.ledger
        ledger.begin("measuring the default schedules")
        for key, task in self.tasks.items():
            for record in filter(succeeded, history.of(task.workload)):
                ledger.note(key, seconds_of(record), record.trace)
        share = self._after_share(_MOST_DEFAULTS)
        for group in self._groups():
            until = share if any(task.best for task in ledger.tasks.values()) else ledger.deadline
            if is_over(until):
                break
            keys = dict.fromkeys(key for function in group for key in function.task_keys)
            self._measure([key for key in keys if ledger.tasks[key].baseline is None], until)
            for _ in self.symbolic.measure([(each, ()) for each in group if each.is_symbolic], until):
                ledger.notify()
        unreached = {key for key, task in ledger.tasks.items() if task.best is None and not task.exhausted}
        for key in unreached:
            ledger.skip(key, "no time was left to measure its default schedule")
        if unreached == ledger.tasks.keys():
            raise TimeIsUpError
        if not ledger.state.curve:
            ledger.add_point()
        ledger.save()

    def measure_copies(self) -> None:
        """How fast a copy would move each task's bytes: how near its limit a function is that computes little.

        In a part of the minutes alone, those of the tasks that take longest first.
        """
        recording, ledger = self.recording, self.ledger
        if ledger.is_over:
            return
        ledger.begin("measuring copies")
        tasks_of: dict[float, list[str]] = {}
        for key in sorted(ledger.tasks, key=lambda key: -ledger.tasks[key].seconds):
            tasks_of.setdefault(parameter_bytes(self.tasks[key].func), []).append(key)
        sizes = list(tasks_of)
        programs = [copy_program(size, recording.target, recording.tvm_target) for size in sizes]
        for index, measurement in recording.measurer.measure(programs, self._after_share(_MOST_COPYING)):
            for key in tasks_of[sizes[index]] if measurement.error is None else ():
                ledger.note_copy(key, min(measurement.seconds))
            ledger.notify()

    def _groups(self) -> Iterator[list[Function]]:
        """The functions, as many at a time as keep all cores busy with building."""
        group: list[Function] = []
        for function in self.functions:
            group.append(function)
            if sum(len(each.sizes) for each in group) >= (os.cpu_count() or 1):
                yield group
                group = []
        if group:
            yield group

    def _after_share(self, share: float) -> float | None:
        """When that part of the time that is left is over."""
        now, deadline = time.monotonic(), self.ledger.deadline
        return None if deadline is None else now + share * max(deadline - now, 0.0)

    def _measure(self, keys: Sequence[str], until: float | None) -> None:
        """The default schedules of these tasks."""
        defaults = [(task := self.tasks[key], default_trace(task.workload), self._program(task)) for key in keys]
        for index, measurement in self.recording.measured(defaults, until):
            if measurement.error is None:
                self.ledger.note(keys[index], median(measurement.seconds), defaults[index][1])
            else:
                self.ledger.skip(keys[index], f"its default schedule cannot be measured: {measurement.error}")
            self.ledger.notify()

    def _program(self, task: Task) -> Program:
        default = schedule_by_rules(task.func, self.recording.target, self.recording.tvm_target)
        return Program(default.scheduled, arguments_of(task.workload["main"]))
