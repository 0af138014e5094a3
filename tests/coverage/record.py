"""The committed record: which models of which source compile, and why the others do not."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch

from tests.conformance.results import ROOT

from .results import Result
from .sources import LIBRARIES, absent
from .verdicts import DEFAULT, FAULTS, KINDS, Setting

RECORD = ROOT / "docs" / "models.json"
PAGE = ROOT / "docs" / "models.md"
OF_TARGETS = {"cpu": (RECORD, PAGE), "cuda": (ROOT / "docs" / "models-cuda.json", ROOT / "docs" / "models-cuda.md")}
"""The record and the page of each target."""


def write(results: Iterable[Result], total: int, setting: Setting = DEFAULT) -> None:
    """Write the record of ``setting``'s target and its page; ``total`` models there are."""
    import transformers

    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    ordered = sorted(results, key=lambda result: (result.case.source, result.case.name))
    record = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "libraries": {LIBRARIES[name]: version(LIBRARIES[name]) for name in LIBRARIES if name not in absent()},
        "absent": absent(),
        "commit": done.stdout.strip(),
        "target": setting.target,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "total": total,
        "models": [result.to_json() for result in ordered],
    }
    path, written = OF_TARGETS[setting.target]
    path.write_text(json.dumps(record, indent=1) + "\n")
    written.write_text(page(record, ordered))


def page(record: dict[str, Any], results: list[Result]) -> str:
    """The record as a page. Its ``remarks``, if there are any, say what was run otherwise, or has changed since."""
    by_variant: dict[tuple[str, str], Counter[str]] = {}
    operators: Counter[str] = Counter()
    for result in results:
        for verdict in result.verdicts:
            by_variant.setdefault((result.case.source, verdict.variant), Counter())[verdict.kind] += 1
            operators.update({re.sub(r" \(\d+\)$", "", name) for name in verdict.operators})
    every = sum(by_variant.values(), Counter())
    on_gpu = record.get("target") == "cuda"
    lines = [
        f"# Models that compile{' for a GPU' if on_gpu else ''}",
        "",
        f"Written by `python -m tests.coverage --record` at commit {record['commit']} with PyTorch "
        f"{record['torch']} and transformers {record['transformers']}: "
        f"{len(results)} of {record['total']} models were run. Each has random "
        "weights and a small configuration (`tests/coverage/shrink.py`), is exported (transformers' models by "
        f"`transformers.exporters`), compiled for {_where(record)} with default options, run, and all its results, "
        "caches included, are compared with PyTorch as `tests/coverage/reference.py` describes. `prefill` and `decode` "
        "are calls of the generating class: of a prompt, and of one more token with the prompt's cache.",
        "",
        '"Not exportable" is PyTorch\'s own refusal. "Not constructible" says that our generic shrinking made no '
        "model or no input that PyTorch takes; it says nothing about TKC.",
        "",
        *(line for remark in record.get("remarks", ()) for line in (remark, "")),
        *_libraries(record),
        "## Counts",
        "",
        f"| source | variant | {' | '.join(KINDS)} |",
        f"|---|---|{'---:|' * len(KINDS)}",
        *(
            f"| {source} | {variant or '?'} | {' | '.join(str(counts[kind]) for kind in KINDS)} |"
            for (source, variant), counts in sorted(by_variant.items())
        ),
        f"| all | | {' | '.join(str(every[kind]) for kind in KINDS)} |",
        "",
        "## Operators called in PyTorch",
        "",
        "| operator | exported calls that have it |",
        "|---|---:|",
        *(f"| `{name}` | {count} |" for name, count in sorted(operators.items(), key=lambda pair: (-pair[1], pair[0]))),
        "",
        "## Faults",
        "",
        *_table(results, FAULTS),
        "",
        "## Refused, not exportable, not constructible",
        "",
        *_table(results, ("refused", "not exportable", "not constructible")),
        "",
        "## Every model",
        "",
        "| source | model | verdicts | kernels called | operators called in PyTorch |",
        "|---|---|---|---|---|",
        *(
            f"| {result.case.source} | {result.case.name} | {_kinds(result)} | {_union(result, 'kernels')} "
            f"| {_union(result, 'operators')} |"
            for result in results
        ),
    ]
    return "\n".join(lines) + "\n"


def _where(record: dict[str, Any]) -> str:
    """What models were compiled for, in words."""
    return f"a GPU in {record['dtype']}" if record.get("target") == "cuda" else "the CPU"


def _libraries(record: dict[str, Any]) -> list[str]:
    """What the other sources were run with, and which could not be run."""
    versions = [f"{name} {number}" for name, number in sorted(record.get("libraries", {}).items())]
    found = [f"Other libraries: {', '.join(versions)} (tests/coverage has the small models and calls)."]
    missing = [f"Not installed, so nothing of them was run anew: {', '.join(record.get('absent', ()))}."]
    return [
        line
        for lines, any_of in ((found, versions), (missing, record.get("absent")))
        if any_of
        for line in (*lines, "")
    ]


def _table(results: list[Result], kinds: Iterable[str]) -> list[str]:
    """A table of all verdicts of these kinds."""
    chosen = set(kinds)
    rows = [
        f"| {result.case.name} | {verdict.variant} | {verdict.kind} | {_cell(verdict.reason)} |"
        for result in results
        for verdict in result.verdicts
        if verdict.kind in chosen
    ]
    return ["| model | variant | verdict | reason |", "|---|---|---|---|", *rows] if rows else ["None."]


def _cell(text: str) -> str:
    """A reason in a table: without what Markdown or the site would read as markup, or the run's machine."""
    text = re.sub(r"/\S*/site-packages/", "", text)
    return "`" + text.replace("|", "/").replace("`", "'").replace("\n", " ")[:240] + "`" if text else ""


def _kinds(result: Result) -> str:
    return ", ".join(f"{verdict.variant}: {verdict.kind}" for verdict in result.verdicts)


def _union(result: Result, field: str) -> str:
    names = {re.sub(r" \(\d+\)$", "", name) for verdict in result.verdicts for name in getattr(verdict, field)}
    return ", ".join(f"`{name}`" for name in sorted(names))
