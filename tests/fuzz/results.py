"""What was found, a line for each graph, so that a run may stop and go on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .forms import Form, default_form
from .judge import Options, Verdict


@dataclass(frozen=True)
class Result:
    """The verdict of graph ``index`` of ``seed`` by the code of ``version``."""

    seed: int
    index: int
    options: Options
    version: str
    operators: int
    seconds: float
    verdict: Verdict
    form: Form

    def to_json(self) -> dict[str, Any]:
        """As one line of the file."""
        return {
            "seed": self.seed,
            "index": self.index,
            **asdict(self.options),
            "version": self.version,
            "operators": self.operators,
            "seconds": round(self.seconds, 2),
            **asdict(self.verdict),
            "form": self.form,
        }

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Result:
        """What :meth:`to_json` gave."""
        return cls(
            line["seed"],
            line["index"],
            Options(line["target"], line["kernels"], line.get("entry", "export")),
            line["version"],
            line["operators"],
            line["seconds"],
            Verdict(line["kind"], line["reason"], line["calls"]),
            line.get("form") or default_form(line["target"]),
        )


def read(path: Path) -> list[Result]:
    """The results in a file; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Result.from_json(json.loads(line)))
        except ValueError:
            continue
    return found


def append(path: Path, result: Result) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result.to_json()) + "\n")


def counts(results: list[Result]) -> Counter[str]:
    """How many graphs have each verdict."""
    return Counter(result.verdict.kind for result in results)
