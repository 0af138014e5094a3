"""Failures as test cases: self-contained source, to be pasted into ``test_found.py``."""

from __future__ import annotations

import re
import textwrap

from .judge import Verdict
from .program import Program, source


def signature(verdict: Verdict) -> str:
    """What failures of one cause have in common: the verdict, and its reason without numbers and names."""
    reason = re.sub(r"at \{[^}]*\}: ", "", verdict.reason)
    if verdict.kind == "wrong":
        reason = re.sub(r":? ?\d+ of \d+ differ.*|(result|updated tensor) \d+", "", reason)
    reason = re.sub(r"\[.*?\]|\d+|'.*?'|v\d+", "", reason)
    return f"{verdict.kind}: {reason[:120]}"


def test_case(name: str, program: Program, verdict: Verdict) -> str:
    """The source of a test that fails as long as ``verdict`` stands."""
    lines = [f"def test_{name}() -> None:", f'    """{_line(verdict)}"""', ""]
    lines += textwrap.indent(source(program), "    ").rstrip().splitlines()
    lines.append("")
    rows = []
    for each in program.inputs:
        parts = [repr(str(each.id)), "(" + "".join(f"{_dim(dim)}, " for dim in each.shape) + ")", repr(each.dtype)]
        parts.append(repr(each.values))
        for key, plain in (("layout", "contiguous"), ("role", "input"), ("bound", 0), ("same", None)):
            if (value := getattr(each, key)) != plain:
                parts.append(f"{key}={value!r}")
        parts[0] = str(each.id)
        rows.append(f"            tensor({', '.join(parts)}),")
    lines += ["    check(", "        Model,", "        [", *rows, "        ],"]
    lines += [f"        {program.sizes.by_name()!r},", f"        {sorted_updated(program)!r},", "    )"]
    return "\n".join(lines) + "\n"


def sorted_updated(program: Program) -> list[int]:
    """The inputs that are updated, by their numbers."""
    return sorted(program.updated())


def _dim(dim: object) -> str:
    text = str(dim)
    return text if text.isdigit() else repr(text)


def _line(verdict: Verdict) -> str:
    return f"{verdict.kind}: {verdict.reason}"[:100].replace("\\", "/").replace('"', "'").replace("\n", " ")
