"""The committed record of a whole run: how many samples of each operator are right, and why the others are not."""

from __future__ import annotations

import datetime
import json
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .results import ROOT, Result
from .samples import DTYPES
from .verdicts import KINDS, Case

FOLDER = ROOT / "docs" / "conformance"

DAYS = 28
"""A month of daily slices sees every case."""


def path_of(target: str, fallback: bool) -> Path:
    """The record of ``target``, ``cpu`` or ``cuda``, without and with operators that are called in PyTorch."""
    return FOLDER / f"operators-{target.partition(':')[0]}{'-fallback' if fallback else ''}.json"


def read(target: str, *, fallback: bool = False) -> dict[str, Any]:
    """The record of ``target``; an empty one if there is none."""
    path = path_of(target, fallback)
    return json.loads(path.read_text()) if path.exists() else {"counts": {}, "reasons": {}, "once_faulty": []}


def write(target: str, results: Iterable[Result], *, fallback: bool) -> None:
    """Write the record and its table. A case that ever had a fault stays listed, so that every slice runs it."""
    results = sorted(results, key=lambda result: (result.case.operator, list(DTYPES).index(result.case.dtype)))
    counts: dict[str, dict[str, dict[str, int]]] = {}
    reasons: dict[str, str] = {}
    once = {tuple(case) for case in read(target, fallback=fallback)["once_faulty"]}
    for result in results:
        operator, dtype = result.case.operator, result.case.dtype
        counts.setdefault(operator, {})[dtype] = {kind: count for kind, count in result.counts.items()}
        for verdict in result.verdicts:
            if verdict.kind != "right" and verdict.reason:
                reasons.setdefault(operator, f"{verdict.kind}: {verdict.reason}")
        if result.faults:
            once.add((operator, dtype))
    record = {
        "torch": torch.__version__,
        "commit": _commit(),
        "most": sorted({result.case.most or 0 for result in results}),
        "counts": counts,
        "reasons": reasons,
        "once_faulty": sorted(map(list, once)),
    }
    path = path_of(target, fallback)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(_table(target, record, fallback))


def slice_of(day: datetime.date, cases: Sequence[Case]) -> list[Case]:
    """The cases of one day: those that once had a fault, then the day's share of all, in a stable order."""
    once = {tuple(case) for case in read("cpu")["once_faulty"]}
    faulty = [case for case in cases if (case.operator, case.dtype) in once]
    share = [
        case
        for case in cases
        if case not in faulty and zlib.crc32(f"{case.operator} {case.dtype}".encode()) % DAYS == day.toordinal() % DAYS
    ]
    return faulty + share


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _table(target: str, record: dict[str, Any], fallback: bool) -> str:
    totals: dict[str, Counter[str]] = {}
    for by_dtype in record["counts"].values():
        for dtype, counts in by_dtype.items():
            totals.setdefault(dtype, Counter()).update(counts)
    limit = ", ".join(f"at most {most} samples each" if most else "all distinct samples" for most in record["most"])
    head = f"| dtype | {' | '.join(KINDS)} |", f"|---|{'---:|' * len(KINDS)}"
    every = sum(totals.values(), Counter())
    rows = [
        f"| {dtype} | {' | '.join(str(counts[kind]) for kind in KINDS)} |"
        for dtype, counts in [*((d, totals[d]) for d in DTYPES if d in totals), ("all", every)]
    ]
    detail = [
        f"| `{operator}` | {_listed(by_dtype)} | {record['reasons'].get(operator, '').replace('|', '/')} |"
        for operator, by_dtype in sorted(record["counts"].items())
        if any(kind != "right" for counts in by_dtype.values() for kind in counts)
    ]
    lines = [
        f"# PyTorch's operator database, target `{target}`",
        "",
        f"Written by `python -m tests.conformance{' --fallback' if fallback else ''} --record` at commit "
        f"{record['commit']} with PyTorch {record['torch']}: the samples of `op_db` ({limit}), exported, compiled, run "
        'and compared with PyTorch as `tests/conformance/comparison.py` describes. "Not exportable" is '
        "`torch.export`'s or PyTorch's own refusal.",
        "",
        *head,
        *rows,
        "",
        "## Operators with samples that are not right",
        "",
        "| operator | samples by dtype | the first reason |",
        "|---|---|---|",
        *detail,
    ]
    return "\n".join(lines) + "\n"


def _listed(by_dtype: dict[str, dict[str, int]]) -> str:
    """The counts, with dtypes of the same counts named together."""
    together: dict[str, list[str]] = {}
    for dtype, counts in by_dtype.items():
        together.setdefault(", ".join(f"{count} {kind}" for kind, count in counts.items()), []).append(dtype)
    return "; ".join(f"{', '.join(dtypes)}: {counts}" for counts, dtypes in together.items())
