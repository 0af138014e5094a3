"""``tkc db``: what is in tuning databases, and what keeps them in order."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import Console

from tkc.cli.options import JsonOption
from tkc.cli.signatures import parse_percent
from tkc.errors import UsageError
from tkc.runtime.tables import PlainTable

app = typer.Typer(help="Look into tuning databases, merge, prune and check them.", no_args_is_help=True)
_out = Console()
_KEY_SHOWN, _NAME_SHOWN = 10, 36  # characters, which tell the functions of a large database apart
_WHOLE = ("target", "key", "records", "failed", "sizes", "best (µs)", "least (µs)", "most (µs)", "functions", "line")

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A tuning database.")]
KeepOption = Annotated[int, typer.Option("--keep", min=1, help="Records of each function, arguments and device.")]


@app.command()
def ls(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """List the functions that DIR has records of, the slowest first."""
    from tkc.schedules.database.maintenance import summaries

    found = {str(target): summaries(store) for target, store in _stores(folder).items()}
    rows = [
        (
            target,
            shorten(s.name, _NAME_SHOWN, placeholder=" …"),
            s.key[:_KEY_SHOWN],
            s.records,
            s.failed,
            s.arguments,
            _microseconds(s.best_seconds),
            ", ".join(s.devices),
        )
        for target, own in found.items()
        for s in own
    ]
    columns = ("target", "function", "key", "records", "failed", "sizes", "best (µs)", "measured on")
    listed = {target: [dataclasses.asdict(summary) for summary in own] for target, own in found.items()}
    _show(columns, rows, listed, as_json)


@app.command()
def show(
    folder: FolderArgument,
    key: Annotated[str, typer.Argument(help="A function's key, or how it begins, as ls shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Show one function of DIR and its records, the fastest first."""
    from tkc.schedules.database.workloads import exact_key

    for target, store in _stores(folder).items():
        for place, workload in enumerate(store.workloads()):
            if workload is None or not exact_key(workload.mod).startswith(key):
                continue
            known = store.provenance()
            records = sorted(
                (record for record in store.stored() if record.workload == place),
                key=lambda record: min(record.run_seconds, default=float("inf")),
            )
            rows = [
                (
                    _microseconds(min(record.run_seconds, default=None)),
                    _microseconds(max(record.run_seconds, default=None)),
                    _arguments(record.arguments),
                    entry.device if (entry := known.get(record.identity)) else "unknown",
                    entry.time if entry else "",
                    (entry.error if entry else None) or "",
                )
                for record in records
            ]
            source = workload.mod["main"].script()
            if not as_json:
                _out.print(f"{target}\n{source}", markup=False, highlight=False)
            columns = ("least (µs)", "most (µs)", "arguments", "measured on", "time", "failed because")
            listed = [dict(zip(columns, row, strict=True)) for row in rows]
            _show(columns, rows, {"target": str(target), "function": source, "records": listed}, as_json)
            return
    raise UsageError(f"{folder} has no function whose key begins with {key}; tkc db ls shows them")


@app.command()
def stats(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Count what DIR has for each target."""
    from tkc.schedules.database.maintenance import summaries

    rows = []
    for target, store in _stores(folder).items():
        found, known = summaries(store), store.provenance().values()
        times = sorted(entry.time for entry in known)
        rows.append(
            (
                str(target),
                len(found),
                sum(summary.records for summary in found),
                sum(summary.failed for summary in found),
                ", ".join(sorted({entry.device for entry in known})),
                times[0] if times else "",
                times[-1] if times else "",
            )
        )
    columns = ("target", "functions", "records", "failed", "measured on", "from", "to")
    _show(columns, rows, [dict(zip(columns, row, strict=True)) for row in rows], as_json)


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The databases to take records from.")],
    into: Annotated[Path, typer.Option("--into", help="The database to add them to; it is made if it is not there.")],
    as_json: JsonOption = False,
) -> None:
    """Add the records of every DIR to another database.

    What is there already stays.
    """
    from tkc.schedules.database import RecordStore, target_folder
    from tkc.schedules.database import maintenance as keeping

    by_target: dict[Any, list[RecordStore]] = {}
    for source in sources:
        for target, store in _stores(source).items():
            by_target.setdefault(target, []).append(store)
    added = {
        str(target): keeping.merge(own, RecordStore(target_folder(into, target))) for target, own in by_target.items()
    }
    _show(("target", "records added"), list(added.items()), added, as_json)


@app.command()
def prune(
    folder: FolderArgument,
    keep: KeepOption = 3,
    failed: Annotated[
        bool, typer.Option("--failed", help="Drop the records of failures, too; jobs may then try the same again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the fastest records of DIR and drop the others."""
    from tkc.schedules.database import maintenance as keeping

    dropped = {str(target): keeping.prune(store, keep, failed) for target, store in _stores(folder).items()}
    _show(("target", "records dropped"), list(dropped.items()), dropped, as_json)


@app.command()
def verify(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Check every line of DIR, and that every schedule applies.

    The exit code is 1 if anything is wrong.
    """
    from tkc.schedules.database import maintenance as keeping

    problems = [(str(target), p) for target, store in _stores(folder).items() for p in keeping.verify(store, target)]
    rows = [(target, problem.file, problem.line, problem.reason) for target, problem in problems]
    rows += [("", path.name, 0, "its name is no target's, so nothing reads it") for path in _foreign(folder)]
    columns = ("target", "file", "line", "problem")
    if not rows and not as_json:
        _out.print("every line is sound, and every schedule applies")
        return
    _show(columns, rows, [dict(zip(columns, row, strict=True)) for row in rows], as_json)
    if rows:
        if not as_json:
            _out.print("tkc db prune drops lines that cannot be read; tune again what no longer applies")
        raise typer.Exit(1)


@app.command()
def export(
    folder: FolderArgument,
    into: Annotated[Path, typer.Argument(metavar="OUT", help="The database to write, which must not be there yet.")],
    keep: KeepOption = 1,
    least_gain: Annotated[
        str, typer.Option("--least-gain", help="Leave out functions that gain less over the default rules, as in 5%.")
    ] = "0%",
    as_json: JsonOption = False,
) -> None:
    """Write a database with only the fastest records of DIR, to share."""
    from tkc.schedules.database import maintenance as keeping

    _stores(folder)
    if into.exists():
        raise UsageError(f"{into} is there already; name a new folder, or use tkc db merge to add to it")
    count = keeping.export(folder, into, keep, parse_percent("--least-gain", least_gain))
    _show(("database", "records"), [(str(into), count)], {"database": str(into), "records": count}, as_json)


def _stores(folder: Path) -> dict[Any, Any]:
    from tkc.schedules.database.maintenance import stores

    if not folder.is_dir():
        raise UsageError(f"there is no tuning database folder {folder}")
    found = stores(folder)
    if not found and not _foreign(folder):
        raise UsageError(f"{folder} holds no tuning records; a tuning database has a folder for each target")
    return found


def _foreign(folder: Path) -> list[Path]:
    from tkc.schedules.database.maintenance import foreign_folders

    return foreign_folders(folder)


def _arguments(text: str) -> str:
    """MetaSchedule's ``[["TENSOR", "float32", [4, 256]]]`` as ``float32 4×256``."""
    return ", ".join(f"{dtype} {'×'.join(map(str, shape))}" for _, dtype, shape in json.loads(text))


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f}"


def _show(columns: tuple[str, ...], rows: list[Any], data: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(data, indent=1))
        return
    table = PlainTable(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        table.add_row(*map(str, row))
    _out.print(table)
