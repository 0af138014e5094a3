"""The committed record of ONNX's backend tests, its table, and the progress that runs resume."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.onnx_cases import KINDS, backend_cases, model_of, runs

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "conformance" / "onnx.json"
TABLE = RECORD.with_suffix(".md")
RUNTIME = RECORD.with_name("onnx_runtime.json")
"""What ONNX Runtime passes, as :mod:`tests.conformance.onnx_runtime` writes it."""
PROGRESS = ROOT / "build" / "conformance" / "onnx.jsonl"
VERDICTS = ("right", "refused", "wrong", "internal", "crash", "hang")
FAILURES = VERDICTS[2:]


@dataclass(frozen=True)
class Verdict:
    """What came of a run: one of :data:`VERDICTS`, and why, where it is not right."""

    case: str
    mode: str
    verdict: str
    detail: str
    seconds: float
    commit: str = ""


def noted(found: Iterable[Verdict], progress: Path) -> Iterator[Verdict]:
    """The verdicts, each with the commit and as a line of ``progress`` before the next one is begun."""
    commit = _commit()
    progress.parent.mkdir(parents=True, exist_ok=True)
    with progress.open("a") as lines:
        for verdict in found:
            lines.write(json.dumps(dataclasses.asdict(dataclasses.replace(verdict, commit=commit))) + "\n")
            lines.flush()
            yield verdict


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def read_progress(path: Path) -> dict[tuple[str, str], Verdict]:
    """The verdicts in a file of JSON lines, by case and mode; the last of each counts."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off
            verdict = Verdict(**json.loads(line))
            found[verdict.case, verdict.mode] = verdict
    return found


def read_record() -> dict[str, Any]:
    """The committed record: the verdicts by case and mode, and the cases that once failed."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {"verdicts": {}, "refusals": {}, "once_failed": []}


def write_record(found: Sequence[Verdict]) -> None:
    """Write the record and its table. A case that ever failed stays listed, so that every slice runs it."""
    once = set(read_record()["once_failed"]) | {v.case for v in found if v.verdict in FAILURES}
    by_case: dict[str, dict[str, str]] = {}
    refusals: dict[str, str] = {}
    for verdict in sorted(found, key=lambda verdict: (verdict.case, verdict.mode)):
        by_case.setdefault(verdict.case, {})[verdict.mode] = verdict.verdict
        if verdict.verdict != "right":
            refusals.setdefault(verdict.case, verdict.detail)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "onnx": onnx.__version__,
        "date": datetime.date.today().isoformat(),
        "commits": dict(Counter(verdict.commit for verdict in found)),
        "runs": len(runs(backend_cases().values())),
        "verdicts": by_case,
        "refusals": refusals,
        "once_failed": sorted(once),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    TABLE.write_text(_table(record))


def _table(record: dict[str, Any]) -> str:
    cases = backend_cases()
    rows: dict[tuple[str, str], Counter[str]] = {}
    total: dict[str, Counter[str]] = {mode: Counter() for mode in ("inputs", "constants")}
    for name, modes in record["verdicts"].items():
        operator = _operator(cases[name])
        for mode, verdict in modes.items():
            total[mode][verdict] += 1
            if verdict != "right":
                rows.setdefault((operator, mode), Counter())[verdict] += 1
    lines = [
        "# ONNX's backend tests on the CPU",
        "",
        f"Written by `python -m tests.conformance.onnx_nodes --all` on {record['date']} with onnx {record['onnx']}: "
        f"the cases of kinds {', '.join(KINDS)}, each with all inputs given at the call, and, of several inputs, with "
        "all but the first bound as constants. Reasons of refusals stand in `onnx.json`.",
        "",
        f"{sum(record['commits'].values()):,} of {record['runs']:,} runs: "
        + ", ".join(f"{count:,} at commit {commit}" for commit, count in record["commits"].items())
        + ".",
        "",
        f"| inputs behind the first | {' | '.join(VERDICTS)} |",
        f"|---|{'---:|' * len(VERDICTS)}",
        *(f"| {mode} | {' | '.join(str(total[mode][verdict]) for verdict in VERDICTS)} |" for mode in total),
        "",
        *_goals(record, cases),
        "",
        "## Operators with cases that are not right",
        "",
        f"| operator | inputs | {' | '.join(VERDICTS[1:])} |",
        f"|---|---|{'---:|' * (len(VERDICTS) - 1)}",
        *(
            f"| {operator} | {mode} | {' | '.join(str(counts[verdict] or '') for verdict in VERDICTS[1:])} |"
            for (operator, mode), counts in sorted(rows.items())
        ),
    ]
    return "\n".join(lines) + "\n"


def _goals(record: dict[str, Any], cases: dict[str, TestCase]) -> list[str]:
    """The shares of right cases that are aimed at, beside what they are."""
    verdicts: dict[str, dict[str, str]] = record["verdicts"]
    rows = [("every input at the call", [modes["inputs"] == "right" for modes in verdicts.values()], 90)]
    # Of a model with one input nothing is bound.
    bound = {name: modes.get("constants", modes["inputs"]) == "right" for name, modes in verdicts.items()}
    if RUNTIME.exists():
        runtime = json.loads(RUNTIME.read_text())
        of_runtime = [bound[name] for name in runtime["passed"] if name in bound]
        rows.append((f"of what ONNX Runtime {runtime['onnxruntime']} passes, shapes bound", of_runtime, 98))
    models = [modes["inputs"] == "right" for name, modes in verdicts.items() if cases[name].kind in KINDS[1:]]
    rows.append(("`simple` and `pytorch-*`, every input at the call", models, 95))
    return [
        "| goal | cases | right | share | aimed at |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {what} | {len(found)} | {sum(found)} | {100 * sum(found) / len(found):.1f} % | {aim} % |"
            for what, found, aim in rows
        ),
    ]


def _operator(case: TestCase) -> str:
    """The operator that a case is about: that of its last node, or, of an expanded one, the function's."""
    node = model_of(case).graph.node[-1]
    prefix = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    return (
        f"expanded {case.name.removeprefix('test_').split('_')[0]}"
        if "_expanded" in case.name
        else prefix + node.op_type
    )


def regressions(found: Iterable[Verdict]) -> list[str]:
    """What failed, or is refused though the record has it right."""
    known = read_record()["verdicts"]
    return [
        f"{verdict.case} ({verdict.mode}): {verdict.verdict}: {verdict.detail}"
        for verdict in found
        if verdict.verdict in FAILURES
        or (verdict.verdict == "refused" and known.get(verdict.case, {}).get(verdict.mode) == "right")
    ]
