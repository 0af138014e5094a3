"""Plants each fault in a copy of the project, and runs the tests that are to find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .mutant import ROOT, Mutant

_LIMIT = 300.0  # seconds for one mutant; where no other work goes on, they take 5 to 20
_COPIED = ("tkc", "kernels", "passes", "schedules", "tuning_db", "tests")
_FAILED = 1  # pytest's exit code where tests ran, and some failed


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
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        yield copy


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
        line.split(" ")[1].removeprefix("tests/")
        for line in output.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    )
    status: Literal["killed", "survived", "broken"] = "survived" if code == 0 else "broken"
    if code == _FAILED and killers:
        status = "killed"
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
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TKC_CACHE_DIR": str(cache),
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "-rfE"]
    command += ["-x"] if stops else []
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return _FAILED, f"FAILED tests/{tests[0]} did not end within {limit:.0f} s"
    return done.returncode, done.stdout + done.stderr
