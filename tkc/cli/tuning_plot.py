"""The picture of a tuning job: gain against trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from tkc.schedules.tuning.progress import Progress


def draw(progress: Progress, path: Path) -> None:
    """Write the PNG ``path``: the speed of the model's functions after each trial, 1 being the default rules'."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    trials, gains = [point.trials for point in progress.curve], [point.gain for point in progress.curve]
    axes.step(trials, gains, where="post", linewidth=2)
    axes.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    axes.annotate(f"{gains[-1]:.2f}×", (trials[-1], gains[-1]), textcoords="offset points", xytext=(-4, 6), ha="right")
    axes.set_xlabel("trials")
    axes.set_ylabel("speed of the model's functions\n(1 = default rules)")
    axes.set_title(f"Tuning: {len(progress.tasks)} tasks, {progress.seconds / 60:.1f} minutes")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
