"""The ``tkc`` command as a whole: what its exit code is, and what it prints when something goes wrong."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress

from tkc.cli.process import INTERRUPTED, leave, started_process
from tkc.errors import Error

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


def main() -> None:
    """Run the command line; every expected error is one message and an exit code, never a traceback."""
    process = started_process()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own code
    code = 0
    try:
        from tkc.cli.app import app  # here, because these imports take a while and may be interrupted too

        process.hurried = False
        app()  # exits by itself, with 2 and a message for a wrong option
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if process.interrupt.happened:
            with suppress(OSError):  # the terminal may be closed
                print("interrupted", file=sys.stderr)
            code = INTERRUPTED
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
