"""Progress of a compilation on the terminal: the current stage, the time so far, and the kernels built."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tkc.builder import KernelLibrary


class StageProgress:
    """A status line that disappears when the work is done; pass its methods to ``tkc.compile``."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("starting")
        self._stage = "starting"
        self._built = 0
        self._cached = 0

    def __enter__(self) -> StageProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str) -> None:
        """The stage ``name`` begins."""
        self._stage = name
        self._update()

    def kernel(self, library: KernelLibrary, cached: bool) -> None:
        """``library`` is ready, ``cached`` or just built."""
        self._cached += cached
        self._built += not cached
        self._update()

    def _update(self) -> None:
        kernels = f" · kernels: {self._built} built, {self._cached} cached" if self._built + self._cached else ""
        self._progress.update(self._task, description=self._stage + kernels)
