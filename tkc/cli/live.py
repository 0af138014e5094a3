"""What a long command shows while it works: a display that changes in a terminal, lines where there is none."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESHES_PER_SECOND = 4
# Lines come at least twice as often as is promised (every 10 s): a machine may be busy.
_LINE_EVERY = 5.0


class Shown(Protocol):
    """What is shown, as it is at that moment."""

    def table(self) -> RenderableType:
        """For a terminal, which shows it anew several times a second."""

    def line(self) -> str:
        """In one line."""

    def phase(self) -> str:
        """A change of it is told at once."""


class LiveView:
    """Shows ``shown`` on ``console`` as long as it is entered, and leaves nothing of it in a terminal."""

    def __init__(self, shown: Shown, console: Console) -> None:
        self._shown = shown
        self._console = console
        self._live: Live | None = None
        self._phase = ""
        self._told_at = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> LiveView:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._shown.table,
                console=self._console,
                transient=True,
                refresh_per_second=_REFRESHES_PER_SECOND,
            )
            self._live.start()
        else:
            self.update()
            threading.Thread(target=self._tell_regularly, name="tkc-progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Something changed: a new phase gets its line at once."""
        if self._live is None and self._shown.phase() != self._phase:
            self._tell()

    def _tell_regularly(self) -> None:
        while not self._ended.wait(max(self._told_at + _LINE_EVERY - time.monotonic(), 0.1)):
            if time.monotonic() >= self._told_at + _LINE_EVERY:
                self._tell()

    def _tell(self) -> None:
        with self._lock:
            self._told_at, self._phase = time.monotonic(), self._shown.phase()
            try:
                self._console.file.write(self._shown.line() + "\n")
                self._console.file.flush()  # a file would see nothing for minutes
            except (OSError, ValueError):  # nobody reads any more, which is no reason to stop working
                self._ended.set()
