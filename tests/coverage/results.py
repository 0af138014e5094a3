"""What was found, a line for each model, so that a run may stop and go on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .verdicts import FAULTS, Case, Kind, Verdict


@dataclass(frozen=True)
class Result:
    """The verdicts of a case by the code of ``version``, and the seconds that they took."""

    case: Case
    version: str
    seconds: float
    verdicts: tuple[Verdict, ...]

    @property
    def counts(self) -> Counter[Kind]:
        """How many variants have each verdict."""
        return Counter(verdict.kind for verdict in self.verdicts)

    @property
    def faults(self) -> list[Verdict]:
        """What is not to be."""
        return [verdict for verdict in self.verdicts if verdict.kind in FAULTS]

    def to_json(self) -> dict[str, Any]:
        """As one line of the file."""
        rows = [{key: value for key, value in asdict(verdict).items() if value != ()} for verdict in self.verdicts]
        return {**asdict(self.case), "version": self.version, "seconds": round(self.seconds, 1), "variants": rows}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Result:
        """What :meth:`to_json` gave."""
        rows: list[dict[str, Any]] = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            for row in line["variants"]
        ]
        verdicts = tuple(Verdict(**row) for row in rows)
        return cls(Case(line["source"], line["name"]), line["version"], line["seconds"], verdicts)


def read(path: Path) -> dict[Case, Result]:
    """The last result of each case in the file; nothing if there is none."""
    found: dict[Case, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        result = Result.from_json(json.loads(line))
        found[result.case] = result
    return found
