"""``tkc cache``: what TKC keeps to use again, and how much of it."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal

from tkc.builder.cache import cache_folder
from tkc.builder.stored import KINDS, CacheEntry, cache_entries, keep_limit, read_limit, removed, write_limit
from tkc.cli.options import JsonOption
from tkc.errors import UsageError
from tkc.runtime.tables import PlainTable

app = typer.Typer(help="Show, prune and limit the cache of kernels and graphs.", no_args_is_help=True)
_out = Console()

_UNITS = {"": 1} | {
    f"{prefix}{unit}": base ** (power + 1)
    for unit, base in (("", 1000), ("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}
_UNITS["b"] = 1
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

KindOption = Annotated[
    list[str] | None, typer.Option("--kind", help=f"Only these: {', '.join(KINDS)}. May be given several times.")
]


@app.command()
def ls(
    kind: KindOption = None,
    entries: Annotated[bool, typer.Option("--entries", help="List every entry, the last used first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the cache holds.

    Of each kind: how many entries, how large, and when one was last used.
    """
    found = _chosen(kind)
    limit = read_limit()
    rows: list[Sequence[str]]
    if as_json:
        _print_json(_told(found) | {"folder": str(cache_folder()), "limit": limit})
        return
    if entries:
        by_use = sorted(found, key=lambda entry: -entry.used)
        rows = [(entry.kind, entry.name, decimal(entry.bytes), _ago(entry.used)) for entry in by_use]
        _print_table(("kind", "entry", "size", "last used"), rows)
    else:
        counted = [summary for summary in summaries(found) if summary.count or summary.kind != "unfinished"]
        rows = [(each.kind, str(each.count), decimal(each.bytes), _ago(each.used)) for each in counted]
        _print_table(("kind", "entries", "size", "last used"), rows)
    total = decimal(sum(entry.bytes for entry in found))
    _out.print(f"{total} in {cache_folder()}; {_limit_told(limit)}", soft_wrap=True, markup=False, highlight=False)


@app.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Only what was not used for so long: 30d, 12h, 2w."),
    ] = None,
    kind: KindOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what the cache holds, or what the options name.

    What is in use stays.
    """
    least = 0.0 if older_than is None else parse_age("--older-than", older_than)
    now = time.time()
    found = [entry for entry in _chosen(kind) if now - entry.used >= least]
    gone = found if dry_run else [entry for entry in found if removed(entry)]
    kept = [entry for entry in found if entry not in gone]
    if as_json:
        _print_json(_told(gone) | {"dry_run": dry_run, "in_use": [_entry_told(entry) for entry in kept]})
        return
    what = ", ".join(f"{summary.count} {summary.kind}" for summary in summaries(gone) if summary.count) or "nothing"
    size = decimal(sum(entry.bytes for entry in gone))
    _out.print(f"{'would remove' if dry_run else 'removed'} {what} ({size})", highlight=False)
    if kept:
        _out.print(f"left {len(kept)} that are in use, or were just now", highlight=False)


@app.command()
def limit(
    size: Annotated[str | None, typer.Argument(help="10GB, 500MB, 2GiB; none lifts the limit.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Limit the cache from now on, or show its limit.

    What was used longest ago goes when something is written.
    """
    gone: list[CacheEntry] = []
    if size is not None:
        write_limit(None if size.lower() == "none" else parse_bytes("limit", size))
        gone = keep_limit()
    now = read_limit()
    if as_json:
        _print_json(_told(gone) | {"limit": now, "folder": str(cache_folder())})
        return
    _out.print(f"{cache_folder()}: {_limit_told(now)}", soft_wrap=True, markup=False, highlight=False)
    if gone:
        _out.print(f"removed {len(gone)} ({decimal(sum(entry.bytes for entry in gone))})", highlight=False)


@dataclass(frozen=True)
class Summary:
    """The entries of one kind: how many, their bytes, and when one was last used."""

    kind: str
    count: int
    bytes: int
    used: float | None


def summaries(entries: Sequence[CacheEntry]) -> list[Summary]:
    """What there is of each kind."""
    by_kind = {kind: [entry for entry in entries if entry.kind == kind] for kind in KINDS}
    return [
        Summary(kind, len(own), sum(entry.bytes for entry in own), max((entry.used for entry in own), default=None))
        for kind, own in by_kind.items()
    ]


def parse_bytes(option: str, text: str) -> int:
    """``10GB`` as a number of bytes; :class:`tkc.UsageError` for another form."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNITS:
        raise UsageError(f"{option} {text}: expected a size such as 10GB, 500MB or 2GiB, or none")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_age(option: str, text: str) -> float:
    """``30d`` as seconds; :class:`tkc.UsageError` for another form."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower(), re.ASCII)
    if found is None:
        raise UsageError(f"{option} {text}: expected a time such as 30d, 12h or 2w")
    return float(found[1]) * _SECONDS[found[2]]


def _chosen(kinds: Sequence[str] | None) -> list[CacheEntry]:
    """The entries of these kinds, or all."""
    if unknown := [kind for kind in kinds or () if kind not in KINDS]:
        raise UsageError(f"--kind {unknown[0]}: the cache holds {', '.join(KINDS)}")
    return [entry for entry in cache_entries() if not kinds or entry.kind in kinds]


def _limit_told(limit: int | None) -> str:
    return "no limit" if limit is None else f"limited to {decimal(limit)}"


def _ago(used: float | None) -> str:
    if used is None:
        return ""
    seconds = max(0.0, time.time() - used)
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return "just now"


def _time(used: float | None) -> str | None:
    return None if used is None else datetime.datetime.fromtimestamp(used, datetime.UTC).isoformat(timespec="seconds")


def _entry_told(entry: CacheEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "path": str(entry.path),
        "bytes": entry.bytes,
        "last_used": _time(entry.used),
    }


def _told(entries: Sequence[CacheEntry]) -> dict[str, Any]:
    kinds = {
        each.kind: {"entries": each.count, "bytes": each.bytes, "last_used": _time(each.used)}
        for each in summaries(entries)
    }
    return {"bytes": sum(entry.bytes for entry in entries), "kinds": kinds, "entries": list(map(_entry_told, entries))}


def _print_json(told: dict[str, Any]) -> None:
    typer.echo(json.dumps(told, indent=1))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = PlainTable()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _out.print(table)
