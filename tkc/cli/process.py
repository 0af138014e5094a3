"""The command as a process: what its exit code is, and what it prints when something goes wrong."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from types import FrameType

from tkc.errors import Error

_INTERRUPTED = 130  # 128 + SIGINT, as shells count


class _Interrupt:
    """Notes that ``Ctrl-C`` was pressed: a library interrupted midway may raise any error instead of passing it on.

    Nor does it then print what fails in destructors of objects whose making was interrupted.
    """

    def __init__(self) -> None:
        self.happened = False
        signal.signal(signal.SIGINT, self._handle)
        sys.unraisablehook = self._report_unraisable

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.happened = True
        raise KeyboardInterrupt

    def _report_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not self.happened:
            sys.__unraisablehook__(unraisable)


def main() -> None:
    """Run the command line; every expected error is one message and an exit code, never a traceback."""
    interrupt = _Interrupt()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own code
    try:
        from tkc.cli.app import app  # here, because these imports take a while and may be interrupted too

        app()  # exits by itself, with 2 and a message for a wrong option
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if interrupt.happened:
            print("interrupted", file=sys.stderr)
            sys.exit(_INTERRUPTED)
        if isinstance(error, SystemExit):
            raise
        sys.exit(_report(error))


def _report(error: BaseException) -> int:
    """Print ``error``; the exit code."""
    if isinstance(error, Error):
        _print(f"error: {error}")
        return error.exit_code
    _print(f"internal error: {type(error).__name__}: {error}")
    _print("this is a fault of tkc; run again with TKC_TRACEBACK=1 for the traceback, and report it")
    if os.environ.get("TKC_TRACEBACK"):
        traceback.print_exception(error)
    return 3


def _print(message: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
