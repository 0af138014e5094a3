"""What was found, a line for each operator and dtype, so that a run may stop and go on."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from .verdicts import FAULTS, Case, Kind, Verdict

ROOT = Path(__file__).parents[2]
Item = TypeVar("Item")
_SOURCES = ("tkc", "passes", "schedules", "kernels")


@dataclass(frozen=True)
class Result:
    """The verdicts of a case by the code of ``version``, and the seconds that they took."""

    case: Case
    version: str
    seconds: float
    verdicts: tuple[Verdict, ...]

    @property
    def counts(self) -> Counter[Kind]:
        """How many samples have each verdict."""
        return Counter(verdict.kind for verdict in self.verdicts)

    @property
    def faults(self) -> list[Verdict]:
        """What is not to be."""
        return [verdict for verdict in self.verdicts if verdict.kind in FAULTS]

    def to_json(self) -> dict[str, Any]:
        """As one line of the file."""
        rows = [asdict(verdict) for verdict in self.verdicts]
        return {**asdict(self.case), "version": self.version, "seconds": round(self.seconds, 2), "samples": rows}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Result:
        """What :meth:`to_json` gave."""
        case = Case(
            line["operator"],
            line["dtype"],
            line["target"],
            line["most"],
            line.get("fallback", False),
            line.get("behind"),
        )
        verdicts = tuple(Verdict(**row) for row in line["samples"])
        return cls(case, line["version"], line["seconds"], verdicts)


@cache
def code_version() -> str:
    """A hash of the sources that decide what is compiled, and PyTorch's release."""
    digest = hashlib.sha256(torch.__version__.encode())
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h") and not path.is_symlink():
                digest.update(path.relative_to(ROOT).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read(paths: Iterable[Path]) -> dict[Case, Result]:
    """The last result of each case in the files."""
    found: dict[Case, Result] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            result = Result.from_json(json.loads(line))
            found[result.case] = result
    return found


class Line(Protocol):
    """A result that can be written as a line."""

    def to_json(self) -> dict[str, Any]:
        """Its fields."""


def append(path: Path, result: Line) -> None:
    """Add a line; it is on disk before the next case is begun."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result.to_json()) + "\n")


def part(cases: Sequence[Item], number: int, parts: int) -> list[Item]:
    """Every ``parts``-th case, the first at ``number`` (from 1)."""
    return list(cases[number - 1 :: parts])


def part_of(text: str) -> tuple[int, int]:
    """``1/3`` as two numbers: the first of three parts."""
    number, parts = (int(each) for each in text.split("/"))
    if not 1 <= number <= parts:
        raise argparse.ArgumentTypeError(f"{text}: the first of three parts is 1/3")
    return number, parts
