"""``tkc`` as a user types it: in a process of its own where a test is about that, else here, which spares its start."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from tkc.cli import main

COMMAND = (sys.executable, "-c", "import sys; sys.argv[0] = 'tkc'; from tkc.cli import main; main()")


def tkc(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in this process; the exit code must be ``code``, and no traceback may show."""
    words = ["tkc", *map(str, arguments)]
    output, errors = io.StringIO(), io.StringIO()
    interrupt = signal.getsignal(signal.SIGINT)  # which the command makes its own
    try:
        with (
            patch.object(sys, "argv", words),
            patch.object(sys, "unraisablehook", sys.unraisablehook),  # the command makes this its own, too
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as exit_,
        ):
            main()
    finally:
        signal.signal(signal.SIGINT, interrupt)
    status = exit_.value.code or 0
    assert isinstance(status, int), status  # a text would be the message of sys.exit
    done = subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())
    return _checked(done, code)


def tkc_process(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own."""
    return _checked(subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True), code)


def _checked(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
