"""When a tuning job has done enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tkc.schedules.tuning.progress import Point

# Over how many trials the gain is watched: fewer would stop at the first unlucky round.
_WINDOW = 64


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
        if all(limit is None for limit in limits.values()):
            raise ValueError(f"a job without a budget never ends; set one of {', '.join(limits)}")

    def spent(self, trials: int, seconds: float, curve: Sequence[Point]) -> str | None:
        """Which limit is reached after ``trials`` and ``seconds``, in words; ``None`` if the job may go on."""
        if self.trials is not None and trials >= self.trials:
            return f"its {self.trials} trials are spent"
        if self.minutes is not None and seconds >= self.minutes * 60:
            return f"its {self.minutes:g} minutes are over"
        if self.until_gain is not None and _recent_gain(curve) < self.until_gain:
            return f"the last {_WINDOW} trials gained less than {self.until_gain:.1%}"
        return None


def _recent_gain(curve: Sequence[Point]) -> float:
    """By what part of its time the model became faster over the last trials; infinite before there were that many."""
    if not curve or curve[-1].trials < _WINDOW:
        return float("inf")
    earlier = [point for point in curve if point.trials <= curve[-1].trials - _WINDOW]
    return curve[-1].gain / earlier[-1].gain - 1 if earlier else float("inf")
