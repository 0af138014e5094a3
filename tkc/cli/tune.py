"""``tkc tune``: its options, and what it prints during a job and after it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperGroup

from tkc import api
from tkc.cli.live import LiveView
from tkc.cli.options import ImportOption, JsonOption, ModelArgument
from tkc.cli.process import this_process
from tkc.cli.signatures import with_options_of
from tkc.errors import UsageError
from tkc.runtime.tables import PlainTable

if TYPE_CHECKING:
    from tkc.kernels.cases import Case
    from tkc.schedules.tuning.progress import Progress

_SHOWN_TASKS = 20
_NAMED = 8
_MOST_SECONDS_TO_END = 1.5  # after Ctrl-C; what is measured is on disk


class _ModelByDefault(TyperGroup):
    """Takes ``tkc tune MODEL`` for ``tkc tune model MODEL``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or _is_misspelt(args[0], self.commands))
        return super().parse_args(ctx, args if named else ["model", *args])


def _is_misspelt(word: str, commands: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(word, commands, 1)) and not Path(word).exists()


app = typer.Typer(cls=_ModelByDefault, help="Search what is fastest on a device; records go to a database.")


@app.command()
@with_options_of(api.tune)
def model(
    model: ModelArgument,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Where to draw gain against trials; beside the records if left out.")
    ] = None,
    modules: ImportOption = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Tune MODEL: its kernels first, then its other functions.

    Kernels are measured in several configurations, and schedules of the functions are searched.

    Interrupt it whenever you like, and go on with --resume.
    """
    import tkc
    from tkc.cli.tuning_plot import draw

    if plot is not None and plot.suffix != ".png":
        raise UsageError(f"--plot {plot}: plots are PNG files")
    process = this_process()
    process.interrupt.end_within(_MOST_SECONDS_TO_END)
    process.hurried = True
    shown = _Job(process.started)
    view = LiveView(shown, Console(stderr=True))

    def show(progress: Progress) -> None:
        shown.progress = progress
        view.update()

    try:
        with view:
            result = tkc.tune(model, **options, observer=show, started=process.started)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be closed
            _say_what_is_kept(shown.progress)
        raise
    path = (plot or result.folder / "gain.png") if result.progress.curve else None
    if path is not None:
        draw(result.progress, path)
    if as_json:
        print(json.dumps({**result.to_json(), "plot": path and str(path)}, indent=1))
        return
    out = Console()
    if result.progress.kernels:
        out.print(kernels_table(result.progress))
    if result.progress.tasks or not result.progress.kernels:
        out.print(tasks_table(result.progress))
    reasons: dict[str, list[str]] = {}
    for each in result.progress.skipped:
        reasons.setdefault(each.reason, []).append(each.function)
    for reason, functions in reasons.items():
        named = ", ".join(functions[:_NAMED]) + (f" and {len(functions) - _NAMED} more" if functions[_NAMED:] else "")
        out.print(f"not tuned, {reason}: {named}", markup=False, highlight=False, soft_wrap=True)
    reach = result.progress.copy_share
    if result.progress.kernels_note is not None:
        out.print(result.progress.kernels_note, markup=False, highlight=False, soft_wrap=True)
    if result.progress.kernels:
        out.print(
            f"kernels {result.kernel_gain:.2f} times as fast as before, with functions {result.total_gain:.2f} times",
            highlight=False,
        )
    out.print(
        f"{result.gain:.2f} times the default rules' speed"
        + ("" if reach is None else f" and {reach:.2f} of a copy's")
        + f" after {result.progress.trials} trials: {result.progress.stopped}",
        highlight=False,
    )
    drawn = "" if path is None else f", plot in {path}"
    out.print(f"records in {result.folder}{drawn}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def kernels(
    names: Annotated[list[str] | None, typer.Argument(help="Kernels by name; all if left out.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda: this machine's.")] = "cuda",
    database: Annotated[
        Path | None, typer.Option("--database", help="The folder of records, made if need be; your own if left out.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Only kernels whose operands are of this dtype.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure tkc's own kernels in all configurations.

    On this machine. Compilations choose from the records.
    """
    from tkc.runtime.local_gpu import runs_here
    from tkc.schedules.database_folders import target_folder, user_database
    from tkc.targets import resolve_target
    from tkc.tuning.kernels import tune_kernels

    resolved = resolve_target(target)
    if reason := runs_here(resolved):
        raise UsageError(f"cannot measure for {resolved} here: {reason}")
    folder = target_folder(database or user_database(), resolved)
    process = this_process()
    process.interrupt.end_within(_MOST_SECONDS_TO_END)
    shown = _Kernels(process.started)
    view = LiveView(shown, Console(stderr=True))

    def show(case: Case, _: object) -> None:
        shown.done(case)
        view.update()

    with view:
        records = tune_kernels(names or [], resolved, folder, show, dtype)
    if as_json:
        print(json.dumps([dataclasses.asdict(record) for record in records], indent=1))
        return
    table = PlainTable(title=f"records in {folder}")
    for name in ("kernel", "parameters", "sizes", "µs", "configuration"):
        table.add_column(name, overflow="fold")
    for record in records:
        parameters, sizes, configuration = map(_told, (record.parameters, record.sizes, record.configuration))
        table.add_row(record.kernel, parameters, sizes, f"{record.milliseconds * 1e3:,.1f}", configuration)
    Console().print(table)


def kernels_table(progress: Progress, title: str = "kernels that the model calls") -> PlainTable:
    """A row for each kernel and its sizes, those that take most of the model's time first."""
    table = PlainTable(title=title, box=None, pad_edge=False)
    for name in ("kernel", "parameters", "sizes"):
        table.add_column(name, overflow="fold")
    for name in ("share", "before µs", "after µs", "gain", "tried"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for kernel in progress.kernels[:_SHOWN_TASKS]:
        table.add_row(
            kernel.kernel,
            _told(kernel.parameters),
            _told(kernel.sizes),
            f"{progress.share_of_all(kernel):.1%}",
            _microseconds(kernel.before),
            _microseconds(kernel.after),
            f"{kernel.speedup:.2f}×",
            str(kernel.tried or "record"),
            _told(kernel.configuration),
        )
    if rest := progress.kernels[_SHOWN_TASKS:]:
        table.add_row(f"{len(rest)} more", "", "", f"{sum(map(progress.share_of_all, rest)):.1%}")
    return table


def _told(values: Mapping[str, Any]) -> str:
    """``values`` without those that say what is left alone."""
    return " ".join(f"{key}={value}" for key, value in values.items() if value not in (None, False, []))


def tasks_table(progress: Progress, title: str | None = None) -> PlainTable:
    """A row for each task, those that take most of the model's time first, under ``title``."""
    if title is None:
        title = f"{progress.activity} · {progress.trials} trials · {progress.seconds:.0f} s · gain {progress.gain:.2f}×"
    table = PlainTable(title=title, box=None, pad_edge=False)
    table.add_column("function", overflow="fold")
    for name in ("share", "default µs", "best µs", "gain", "of a copy", "trials", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    ranked = sorted((task for task in progress.tasks if task.best), key=lambda task: -task.seconds)
    for task in ranked[:_SHOWN_TASKS]:
        table.add_row(
            task.name,
            f"{progress.share(task):.1%}",
            _microseconds(task.baseline),
            _microseconds(task.best),
            f"{task.speedup:.2f}×",
            "–" if task.copy_share is None else f"{task.copy_share:.2f}",
            str(task.trials),
            str(task.failed),
        )
    if len(ranked) > _SHOWN_TASKS:
        rest = ranked[_SHOWN_TASKS:]
        table.add_row(f"{len(rest)} more", f"{sum(map(progress.share, rest)):.1%}")
    return table


class _Job:
    """What is shown of a job."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.progress: Progress | None = None

    def table(self) -> RenderableType:
        """The tasks, below one line."""
        progress = self.progress
        if progress is None or not (progress.tasks or progress.kernels):
            return self.line()
        return tasks_table(progress, self.line()) if progress.tasks else kernels_table(progress, self.line())

    def line(self) -> str:
        """How far it is."""
        seconds = time.monotonic() - self._started
        progress = self.progress
        told = [f"{seconds:.0f} s", self.phase()]
        if progress is not None and progress.kernels:
            told.append(f"{len(progress.kernels)} kernels, gain {progress.kernel_gain:.2f}×")
        if progress is not None and progress.trials:
            told += [f"{progress.trials} trials", f"gain {progress.gain:.2f}×"]
        return " · ".join(told)

    def phase(self) -> str:
        """What it is doing."""
        return "starting" if self.progress is None else self.progress.activity


class _Kernels:
    """What is shown while kernels are measured."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._phase = "building every configuration"
        self._count = 0

    def done(self, case: Case) -> None:
        """``case`` was measured."""
        self._count += 1
        self._phase = f"{case.kernel} {dict(case.sizes)}"

    def table(self) -> RenderableType:
        """One line."""
        return Text(self.line())

    def line(self) -> str:
        """How far it is."""
        counted = f" · {self._count} sizes measured" if self._count else ""
        return f"{time.monotonic() - self._started:.0f} s · {self._phase}{counted}"

    def phase(self) -> str:
        """What was measured last."""
        return self._phase


def _say_what_is_kept(progress: Progress | None) -> None:
    if progress is None or not (progress.kernels or any(task.best for task in progress.tasks)):
        print("nothing was measured yet", file=sys.stderr)
        return
    kernels = f"kernels {progress.kernel_gain:.2f} times as fast as before; " if progress.kernels else ""
    print(
        f"{kernels}"
        f"after {progress.trials} trials: {progress.gain:.2f} times the default rules' speed; everything measured is "
        "recorded, and the same command with --resume goes on",
        file=sys.stderr,
    )


def _microseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e6:,.1f}"
