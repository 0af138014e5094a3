"""Which task gets the next trials: the one that promises to save the model the most time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# What an untried task is taken to save in its first round, of its own time; then half, a third, … of it.
_HOPE = 0.5
# The newest round's saving counts this much against the older ones'.
_NEWEST = 0.5


@dataclass
class Standing:
    """A task's time in the model (calls × seconds of its best schedule), and what its rounds have saved so far."""

    seconds: float
    rounds: int = 0
    trend: float = field(default=_HOPE)
    exhausted: bool = False

    def finished_round(self, seconds: float) -> None:
        """A round ended with the task at ``seconds``."""
        saved = 1 - seconds / self.seconds if self.seconds else 0.0
        self.trend = saved if not self.rounds else _NEWEST * saved + (1 - _NEWEST) * self.trend
        self.seconds = seconds
        self.rounds += 1

    @property
    def expected_saving(self) -> float:
        """The seconds of the model that the next round promises to save.

        It takes the larger of what recent rounds saved and of a hope that fades with every round, so that a task
        without luck is tried again, later; the idea is that of gradient-based task scheduling (Zheng et al., "Ansor",
        OSDI 2020, section 6).
        """
        return self.seconds * max(self.trend, _HOPE / (self.rounds + 1) ** 2)


def next_task(standings: Iterable[tuple[str, Standing]]) -> str | None:
    """The task that promises most; ``None`` if every task is exhausted."""
    open_tasks = [(standing.expected_saving, key) for key, standing in standings if not standing.exhausted]
    return max(open_tasks)[1] if open_tasks else None
