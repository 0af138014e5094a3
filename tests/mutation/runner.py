"""Plants each fault in a copy of the project, and runs the tests that are to find it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What the tests import and no mutant changes: loaded once, before the processes are forked that test.
import onnx  # noqa: F401
import pytest
import torch  # noqa: F401
import transformers  # noqa: F401
import tvm  # noqa: F401

from .mutant import ROOT, Mutant

_LIMIT = 300.0  # seconds for one mutant; where no other work goes on, they take 5 to 20
_COPIED = ("tkc", "kernels", "passes", "schedules", "tuning_db", "tests")
_FAILED = 1  # pytest's exit code where tests ran, and some failed

_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))


@dataclass(frozen=True)
class Outcome:
    """What came of one mutant; ``killers`` are the tests that failed."""

    name: str
    file: str
    status: Literal["killed", "survived", "broken"]
    seconds: float
    killers: tuple[str, ...]


@contextmanager
def copied_project() -> Iterator[Path]:
    """A copy of the project in a folder of its own; ``site`` in it is what imports find first.

    The packages beside ``tkc`` lie where they are installed to, inside it, so that the checkout stays out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="tkc-mutation-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            place = copy / "site" / ("tkc" if name == "tkc" else f"tkc/{name}") if name != "tests" else copy / "tests"
            shutil.copytree(ROOT / name, place, ignore=_left_out)
        shutil.copy(ROOT / "pyproject.toml", copy)
        yield copy


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Compiled modules, and the links in ``tkc/`` to the packages beside it, which are copied themselves."""
    return {name for name in names if name == "__pycache__" or (Path(folder) / name).is_symlink()}


def place(copy: Path, file: str) -> Path:
    """Where a file of the checkout lies in the copy."""
    top, _, rest = file.partition("/")
    return copy / "site" / "tkc" / rest if top == "tkc" else copy / "site" / "tkc" / file


def run(mutant: Mutant, copy: Path, cache: Path) -> Outcome:
    """Plant the fault, run its tests until one fails, and take it away again."""
    path = place(copy, mutant.file)
    original = path.read_text()
    path.write_text(mutant.applied(original))
    start = time.monotonic()
    try:
        code, output = _pytest(mutant.tests, copy, cache)
    finally:
        path.write_text(original)
    killers = tuple(
        line.split(" ", 1)[1].split(" - ")[0].removeprefix("tests/")
        for line in output.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    )
    status: Literal["killed", "survived", "broken"] = "survived" if code == 0 else "broken"
    if code == _FAILED and killers:
        status = "killed"
    elif code in _CRASHES:
        status, killers = "killed", (f"a crash: {signal.Signals(-code).name}",)
    if status == "broken":
        print(output, file=sys.stderr)
    return Outcome(mutant.name, mutant.file, status, round(time.monotonic() - start, 1), killers)


def passes_untouched(tests: list[str], copy: Path, cache: Path) -> bool:
    """Whether the tests pass in the copy as it is: a test that fails anyway finds nothing."""
    code, output = _pytest(tuple(tests), copy, cache, limit=_LIMIT * 10, stops=False)
    if code:
        print(output, file=sys.stderr)
    return code == 0


def _pytest(
    tests: tuple[str, ...], copy: Path, cache: Path, limit: float = _LIMIT, stops: bool = True
) -> tuple[int, str]:
    """The exit code and the output of pytest, in a process forked from this one, which has the libraries loaded."""
    options = ["-q", "-p", "no:cacheprovider", "--tb=line", "-rfE", *(["-x"] if stops else [])]
    with tempfile.TemporaryFile("w+") as output:
        process = os.fork()
        if process == 0:
            os.setsid()  # with a group of its own, so that what it starts ends with it
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.chdir(copy)
            os.environ |= {"PYTHONPATH": str(copy / "site"), "TKC_CACHE_DIR": str(cache)}
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(copy / "site"))
            code = _FAILED
            try:
                code = int(pytest.main([*options, *(f"tests/{test}" for test in tests)]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = _waited_for(process, limit)
        output.seek(0)
        text = output.read()
    return code, text if code >= 0 else f"{text}\nthe tests ended by signal {-code}"


def _waited_for(process: int, limit: float) -> int:
    """The exit code of a child; negative if it died, or had to be killed, which all that it started is then."""
    end = time.monotonic() + limit
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
