"""How far a tuning job is: what an observer sees after each trial, and what the job returns at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.schedules.tuning.tasks import Skipped


@dataclass(frozen=True)
class TaskProgress:
    """One task. ``baseline`` and ``best`` are the seconds of a call under the default rules and under the best schedule
    so far, ``copy`` those of a copy that moves as many bytes, ``None`` until there is one; ``weight`` is how often the
    model calls it.
    """

    name: str
    weight: float
    baseline: float | None = None
    best: float | None = None
    copy: float | None = None
    trials: int = 0
    failed: int = 0
    exhausted: bool = False

    @property
    def speedup(self) -> float:
        """The time under the default rules over the best one; 1 until both are known."""
        return self.baseline / self.best if self.baseline and self.best else 1.0

    @property
    def copy_share(self) -> float | None:
        """The part of a copy's speed that the best schedule reaches."""
        return self.copy / self.best if self.copy and self.best else None

    @property
    def seconds(self) -> float:
        """What the task takes of one call of the model, as far as it is known."""
        return self.weight * (self.best or 0.0)


@dataclass(frozen=True)
class KernelGain:
    """A kernel that the model calls ``weight`` times with these ``sizes``. ``before`` and ``after`` are the seconds of
    a call in the configuration that compilations took before the job, and in ``configuration``, which they take now.

    ``tried`` counts configurations; it is 0 where an earlier job's record stands.
    """

    kernel: str
    parameters: Mapping[str, Any]
    sizes: Mapping[str, int]
    weight: float
    before: float
    after: float
    configuration: Mapping[str, Any]
    tried: int

    @property
    def speedup(self) -> float:
        """The time before over the time after."""
        return self.before / self.after

    @property
    def seconds(self) -> float:
        """What it takes of one call of the model."""
        return self.weight * self.after


@dataclass(frozen=True)
class Point:
    """How much faster the model was (1 is the default rules' speed) after that many trials."""

    trials: int
    gain: float


@dataclass(frozen=True)
class Progress:
    """The whole job: ``seconds`` it has run, the import of the model included, and ``trials`` it has spent, both over
    all its resumptions. ``stopped`` says why it ended, ``None`` while it runs. ``kernels`` are those that were measured
    before the functions, ``kernels_note`` says why some were not.
    """

    activity: str
    tasks: tuple[TaskProgress, ...]
    trials: int
    seconds: float
    curve: tuple[Point, ...]
    skipped: tuple[Skipped, ...] = ()
    stopped: str | None = None
    kernels: tuple[KernelGain, ...] = ()
    kernels_note: str | None = None

    @property
    def gain(self) -> float:
        """How much faster the model's generated functions are together than under the default rules."""
        return gain(self.tasks)

    @property
    def kernel_gain(self) -> float:
        """How much faster the kernels that were measured are together than in the configurations of before."""
        after = sum(kernel.seconds for kernel in self.kernels)
        return sum(kernel.weight * kernel.before for kernel in self.kernels) / after if after else 1.0

    @property
    def total_gain(self) -> float:
        """How much faster kernels and generated functions are together, of those that were measured."""
        kernels = sum(kernel.seconds for kernel in self.kernels)
        functions = sum(task.seconds for task in self.tasks)
        if not kernels + functions:
            return 1.0
        return (kernels * self.kernel_gain + functions * self.gain) / (kernels + functions)

    @property
    def copy_share(self) -> float | None:
        """The part of a copy's speed that all functions reach together, of those for which it is known."""
        known = [task for task in self.tasks if task.copy and task.best]
        after = sum(task.seconds for task in known)
        return sum(task.weight * (task.copy or 0.0) for task in known) / after if after else None

    def share(self, task: TaskProgress) -> float:
        """The part of the time of all tasks that ``task`` takes now."""
        total = sum(each.seconds for each in self.tasks)
        return task.seconds / total if total else 0.0

    def share_of_all(self, kernel: KernelGain) -> float:
        """The part that ``kernel`` takes now of the time of all kernels and tasks that were measured."""
        total = sum(each.seconds for each in self.kernels) + sum(each.seconds for each in self.tasks)
        return kernel.seconds / total if total else 0.0


def gain(tasks: tuple[TaskProgress, ...]) -> float:
    """The time of ``tasks`` by the default rules over that by their best schedules, each weighted by its calls.

    A task that one of them is missing for counts with the other on both sides.
    """
    before = sum(task.weight * (task.baseline or task.best or 0.0) for task in tasks)
    after = sum(task.weight * (task.best or task.baseline or 0.0) for task in tasks)
    return before / after if after else 1.0
