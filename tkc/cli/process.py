"""The process that a command runs in: since when, whether it was interrupted, and how it is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

INTERRUPTED = 130
"""The exit code of an interrupted process: 128 + SIGINT, as shells count."""
# The last is sent when a terminal is closed; nohup has it ignored, which it stays.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds within which a second signal is the same wish: a terminal sends one to all, and who started us may pass it on.
_SAME = 2.0


class Interrupt:
    """Notes that ``Ctrl-C`` was pressed, or an end asked for: a library interrupted midway may raise any error instead
    of passing it on.

    Nor does it then print what fails in destructors of objects whose making was interrupted.
    """

    def __init__(self) -> None:
        self.happened = False
        self._at = 0.0
        self._first = threading.Event()
        self._before = {
            number: signal.signal(number, self._handle)
            for number in _SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        sys.unraisablehook = self._report_unraisable

    def end_within(self, seconds: float) -> None:
        """The process ends as many seconds after an interrupt, whatever it is in."""

        def end() -> None:
            self._first.wait()
            time.sleep(seconds)
            if sys.stdout is sys.__stdout__:
                leave(INTERRUPTED)

        threading.Thread(target=end, name="tkc-interrupt", daemon=True).start()

    def restore(self) -> None:
        """Requests to end are again answered as before; ``Ctrl-C`` is still noted."""
        for number in self._before.keys() - {signal.SIGINT}:
            signal.signal(number, self._before[number])

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.happened and time.monotonic() < self._at + _SAME:
            return
        self.happened, self._at = True, time.monotonic()
        self._first.set()
        raise KeyboardInterrupt

    def _report_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not self.happened:
            sys.__unraisablehook__(unraisable)


@dataclass
class Process:
    """What commands may want to know of their process: when it ``started`` (of ``time.monotonic``). One that is
    ``hurried`` ends without taking down what it has loaded, which takes a second.
    """

    started: float
    interrupt: Interrupt
    hurried: bool = False


_this: Process | None = None


def started_process() -> Process:
    """The process as the command begins, which :func:`this_process` is from now on; nothing is loaded yet."""
    global _this
    _this = Process(time.monotonic(), Interrupt(), hurried=True)
    return _this


def this_process() -> Process:
    """The process that the command runs in."""
    return _this or Process(time.monotonic(), Interrupt())


def leave(code: int) -> None:
    """End the process at once, without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
