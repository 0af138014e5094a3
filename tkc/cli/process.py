"""The command as a process: what its exit code is, and what it prints when something goes wrong."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from tkc.errors import Error

_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds within which a second signal is the same wish: a terminal sends one to all, and who started us may pass it on.
_SAME = 2.0
_ROOM = "make room there, or name another place (TMPDIR is that of temporary files)"
_PLACE = "name another place, or change who may use it"
# What a system answers that is no fault of ours, and what there is to do.
_REFUSED = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: _PLACE,
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
    errno.ENOTDIR: "a folder on the way to it is a file; name another place",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class Interrupt:
    """Notes that ``Ctrl-C`` was pressed, or an end asked for: a library interrupted midway may raise any error instead
    of passing it on.

    Nor does it then print what fails in destructors of objects whose making was interrupted.
    """

    def __init__(self) -> None:
        self.happened = False
        self._at = 0.0
        self._first = threading.Event()
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        sys.unraisablehook = self._report_unraisable

    def end_within(self, seconds: float) -> None:
        """The process ends as many seconds after an interrupt, whatever it is in."""

        def end() -> None:
            self._first.wait()
            time.sleep(seconds)
            if sys.stdout is sys.__stdout__:
                leave(_INTERRUPTED)

        threading.Thread(target=end, name="tkc-interrupt", daemon=True).start()

    def restore(self) -> None:
        """Requests to end are again answered as before; ``Ctrl-C`` is still noted."""
        signal.signal(signal.SIGTERM, self._before[signal.SIGTERM])

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


def this_process() -> Process:
    """The process that :func:`main` runs in."""
    return _this or Process(time.monotonic(), Interrupt())


def main() -> None:
    """Run the command line; every expected error is one message and an exit code, never a traceback."""
    global _this
    process = _this = Process(time.monotonic(), Interrupt(), hurried=True)  # nothing is loaded yet
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own code
    code = 0
    try:
        from tkc.cli.app import app  # here, because these imports take a while and may be interrupted too

        process.hurried = False
        app()  # exits by itself, with 2 and a message for a wrong option
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if process.interrupt.happened:
            print("interrupted", file=sys.stderr)
            code = _INTERRUPTED
        elif isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            code = _report(error)
    finally:
        process.interrupt.restore()
    # Where the streams are not the process's own, somebody else has called this, who has more to do.
    if sys.stdout is sys.__stdout__ and (process.hurried or _is_work_left()):
        leave(code)
    sys.exit(code)


def leave(code: int) -> None:
    """End the process at once, without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _is_work_left() -> bool:
    """Whether a tuning job left something behind, for which Python would wait."""
    background = sys.modules.get("tkc.schedules.tuning.background")
    return background is not None and background.is_work_left()


def _report(error: BaseException) -> int:
    """Print ``error``; the exit code."""
    if isinstance(error, Error):
        _print(f"error: {error}")
        return error.exit_code
    if (cause := _machine_refuses(error)) is not None:
        _print(f"error: {cause}")
        return Error.exit_code
    _print(f"internal error: {type(error).__name__}: {error}")
    _print("this is a fault of tkc; run again with TKC_TRACEBACK=1 for the traceback, and report it")
    if os.environ.get("TKC_TRACEBACK"):
        traceback.print_exception(error)
    return 3


def _machine_refuses(error: BaseException) -> str | None:
    """What the user's machine does not let us do, if ``error`` is about that; a compiler tells of a full disk, too."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        place = f"{error.filename2 or error.filename}: " if error.filename2 or error.filename else ""
        return f"{place}{error.strerror}; {_REFUSED[error.errno]}"
    for number in (errno.ENOSPC, errno.EDQUOT):
        if (told := os.strerror(number)) in str(error):
            return f"{told} in {os.environ.get('TMPDIR', '/tmp')}, or where something is written; {_REFUSED[number]}"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return f"{error.strerror}; {_ROOM}"
    return None


def _print(message: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
