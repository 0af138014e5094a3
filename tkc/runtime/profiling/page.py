"""A profile as one HTML page that loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tkc.runtime.profiling.rows import COLUMNS, HOST, Row, cells, told_seconds

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c2330; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #dde2ea; vertical-align: top; }
th { background: #f2f4f8; position: sticky; top: 0; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { background: #cfe0fb; height: .45rem; margin-top: .2rem; }
.kernel .bar { background: #9dd7b3; } .PyTorch .bar { background: #f5cf9b; } .host .bar { background: #d5d8de; }
details > summary { cursor: pointer; } code { font-size: 12px; overflow-wrap: anywhere; }
"""
_LEAST_SHARE = 0.005
"""Of the call, for a module to have a row."""
_TEXTS = ("function", "nodes")


def page(title: str, heading: Sequence[str], modules: Mapping[str, float], rows: Sequence[Row], total: float) -> str:
    """A profile as HTML: the lines of its ``heading``, the seconds of ``modules`` and of ``rows``, out of ``total``."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in heading),
        _modules(modules, total),
        "<h2>Functions</h2><table><tr>",
        *(f"<th{_number(column)}>{escape(column)}</th>" for column in COLUMNS),
        "</tr>",
        *map(_row, rows),
        "</table></html>",
    ]
    return "\n".join(part for part in parts if part)


def _modules(modules: Mapping[str, float], total: float) -> str:
    rows = [(path, seconds) for path, seconds in modules.items() if seconds >= _LEAST_SHARE * total]
    if not rows:
        return ""
    lines = [
        f'<tr><td>{escape(path)}</td><td class="number">{told_seconds(seconds)}</td>'
        f'<td class="number">{seconds / total:.1%}<div class="bar" style="width:{seconds / total:.1%}"></div></td></tr>'
        for path, seconds in rows
    ]
    head = '<tr><th>module</th><th class="number">time</th><th class="number">share</th></tr>'
    return "\n".join(["<h2>Modules, with what they call</h2><table>", head, *lines, "</table>"])


def _row(row: Row) -> str:
    shown = dict(zip(COLUMNS, map(escape, cells(row)), strict=True))
    if row.nodes:
        lines = "<br>".join(f"<code>{escape(node)}</code>" for node in row.nodes)
        shown["nodes"] = f"<details><summary>{shown['nodes']}</summary>{lines}</details>"
    shown["share"] += f'<div class="bar" style="width:{min(row.share, 1.0):.1%}"></div>'
    kind = "" if row.kind == HOST else f"<br><small>{escape(row.kind)}</small>"
    shown["function"] = f"{shown['function']}{kind}"
    columns = "".join(f"<td{_number(column)}>{shown[column]}</td>" for column in COLUMNS)
    return f'<tr class="{escape(row.kind)}">{columns}</tr>'


def _number(column: str) -> str:
    return "" if column in _TEXTS else ' class="number"'
