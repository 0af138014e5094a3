"""When a tuning job has done enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tkc.schedules.tuning.progress import Point

# Over how many trials the gain is watched: fewer would stop at the first unlucky round.
_WINDOW = 64
_CLOSING_SECONDS = 2.0
_CLOSING_SHARE = 0.05


@dataclass(frozen=True)
class Budget:
    """What a job may spend: trials, minutes, and trials that gain too little. ``None`` is no limit.

    ``until_gain`` is the gain, as a part of the model's time, that the last 64 trials must have brought for the job to
    go on. Raises :class:`ValueError` for a limit that leaves nothing to do, and if there is none at all.
    """

    trials: int | None = None
    minutes: float | None = None
    until_gain: float | None = None

    def __post_init__(self) -> None:
        limits = {"trials": self.trials, "minutes": self.minutes, "until_gain": self.until_gain}
        for name, limit in limits.items():
            if limit is not None and limit <= 0:
                raise ValueError(f"a budget of {name}={limit:g} leaves nothing to do; it must be more than 0")
            if limit is not None and not math.isfinite(limit):
                raise ValueError(f"a budget of {name}={limit:g} never ends; it must be a number")
        if all(limit is None for limit in limits.values()):
            raise ValueError(f"a job without a budget never ends; set one of {', '.join(limits)}")

    @property
    def over(self) -> str:
        """What is said when the minutes are over."""
        return f"its {self.minutes:g} minutes are over"

    @property
    def closing_seconds(self) -> float:
        """What of the minutes is left for what follows the last measurement: ending processes, and the plot."""
        return 0.0 if self.minutes is None else min(_CLOSING_SECONDS, _CLOSING_SHARE * 60 * self.minutes)

    def deadline(self, started: float, seconds: float = 0.0) -> float | None:
        """When the last measurement must end of a job that ``started`` (both of ``time.monotonic``), and that had spent
        ``seconds`` before; ``None`` if it may take as long as it likes.
        """
        return None if self.minutes is None else started + 60 * self.minutes - seconds - self.closing_seconds

    def spent(self, trials: int, seconds: float, curve: Sequence[Point]) -> str | None:
        """Which limit is reached after ``trials`` and ``seconds``, in words; ``None`` if the job may go on."""
        if self.trials is not None and trials >= self.trials:
            return f"its {self.trials} trials are spent"
        if self.minutes is not None and seconds >= self.minutes * 60:
            return self.over
        if self.until_gain is not None and _recent_gain(curve) < self.until_gain:
            return f"the last {_WINDOW} trials gained less than {self.until_gain:.1%}"
        return None


def _recent_gain(curve: Sequence[Point]) -> float:
    """By what part of its time the model became faster over the last trials; infinite before there were that many."""
    if not curve or curve[-1].trials < _WINDOW:
        return float("inf")
    earlier = [point for point in curve if point.trials <= curve[-1].trials - _WINDOW]
    return curve[-1].gain / earlier[-1].gain - 1 if earlier else float("inf")
