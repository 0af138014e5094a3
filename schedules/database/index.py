"""Which lines of a target's files hold the records of a function: a cache beside them, made again when it is stale."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from heapq import nsmallest
from importlib.metadata import version
from pathlib import Path
from statistics import median

from pydantic_core import from_json
from tvm.s_tir.meta_schedule.database import Workload

from tkc.schedules.database.store import (
    PROVENANCE,
    RECORDS,
    WORKLOADS,
    StoredRecord,
    parse_record,
    parse_workload,
)
from tkc.schedules.database.workloads import anchor_key, exact_key

FILE = "index.sqlite"
_FORMAT = 2  # raised where the same files give other tables, so that older indexes are made again
_PATIENCE = 30.0  # seconds that one process waits for another to bring the index up to date
_TABLES = """
CREATE TABLE read (file TEXT PRIMARY KEY, inode INTEGER, modified INTEGER, size INTEGER, lines INTEGER);
CREATE TABLE versions (text TEXT);
CREATE TABLE workload (place INTEGER PRIMARY KEY, exact TEXT, anchor TEXT, start INTEGER, length INTEGER);
CREATE TABLE device (record TEXT PRIMARY KEY, name TEXT);
CREATE TABLE record (
    workload INTEGER, arguments TEXT, device TEXT, by_rules INTEGER, seconds REAL, start INTEGER, length INTEGER
);
CREATE INDEX by_exact ON workload (exact);
CREATE INDEX by_anchor ON workload (anchor);
CREATE INDEX by_workload ON record (workload, seconds);
"""

_DROP_SLOWER = """
DELETE FROM record WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, ROW_NUMBER() OVER (
            PARTITION BY workload, arguments, device, by_rules ORDER BY seconds, start
        ) AS rank FROM record
    ) WHERE rank > ?
)
"""
# A record may no longer apply; then the next best at the same arguments has its turn.
_BEST = 3


@dataclass(frozen=True)
class Place:
    """Where a record that did not fail stands in its file, and the device it was measured on."""

    device: str
    start: int
    length: int


class Index:
    """The index of one target's folder. Where that cannot be written to, it lives in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._open()
        except sqlite3.OperationalError:  # nothing can be written here
            self._database = sqlite3.connect(":memory:")
            self._catch_up()
        except sqlite3.DatabaseError:  # what is there is no index any more
            (folder / FILE).unlink()
            self._open()

    def _open(self) -> None:
        self._database = sqlite3.connect(self._folder / FILE, timeout=_PATIENCE)
        self._catch_up()

    def exact(self, key: str) -> list[int]:
        """The workloads with this key, by their places."""
        return [place for (place,) in self._database.execute("SELECT place FROM workload WHERE exact = ?", (key,))]

    def anchored(self, key: str) -> list[int]:
        """The workloads with this key of the anchor block, by their places."""
        return [place for (place,) in self._database.execute("SELECT place FROM workload WHERE anchor = ?", (key,))]

    def workload(self, place: int) -> Workload | None:
        """The workload at ``place``; ``None`` where it cannot be read."""
        row = self._database.execute("SELECT start, length FROM workload WHERE place = ?", (place,)).fetchone()
        return parse_workload(self._line(WORKLOADS, *row)) if row else None

    def best(self, place: int) -> list[Place]:
        """The few fastest records of a workload at each set of arguments and on each device, best first; the default
        rules' among them, however fast.
        """
        query = "SELECT device, start, length FROM record WHERE workload = ? ORDER BY seconds, start"
        return [Place(*row) for row in self._database.execute(query, (place,))]

    def record(self, place: Place) -> StoredRecord | None:
        """The record at ``place``."""
        return parse_record(self._line(RECORDS, place.start, place.length))

    def _line(self, name: str, start: int, length: int) -> str:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(length).decode(errors="replace")

    def _catch_up(self) -> None:
        with closing(self._database.cursor()) as cursor:
            if self._is_stale(cursor):
                self._update()

    def _is_stale(self, cursor: sqlite3.Cursor) -> bool:
        if not cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'read'").fetchone():
            return True
        known = {
            name: (inode, modified, size) for name, inode, modified, size, _ in cursor.execute("SELECT * FROM read")
        }
        return cursor.execute("SELECT text FROM versions").fetchone() != (_versions(),) or any(
            known.get(name) != _state(self._folder / name) for name in (WORKLOADS, RECORDS)
        )

    def _update(self) -> None:
        """Read what was added since; everything, where a file was replaced or the keys of another TVM are in it."""
        self._database.execute("PRAGMA synchronous = OFF")  # a lost index is made again
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            with closing(self._database.cursor()) as cursor:
                if not self._only_grew(cursor):
                    for (table,) in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                        cursor.execute(f"DROP TABLE {table}")
                    for statement in filter(str.strip, _TABLES.split(";")):
                        cursor.execute(statement)
                    cursor.execute("INSERT INTO versions VALUES (?)", (_versions(),))
                # Records before their provenance: what was written of the latter is complete for the former.
                records, workloads = list(self._added(cursor, RECORDS)), list(self._added(cursor, WORKLOADS))
                devices = self._add_devices(cursor)
                _add_workloads(cursor, workloads)
                _add_records(cursor, records, devices)
                cursor.execute(_DROP_SLOWER, (_BEST,))

    def _only_grew(self, cursor: sqlite3.Cursor) -> bool:
        if not cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'read'").fetchone():
            return False
        if cursor.execute("SELECT text FROM versions").fetchone() != (_versions(),):
            return False
        for name, inode, modified, size, _ in cursor.execute("SELECT * FROM read").fetchall():
            found = _state(self._folder / name)
            if found[0] != inode or found[2] < size or (found[2] == size and found[1] != modified):
                return False
        return True

    def _added(self, cursor: sqlite3.Cursor, name: str) -> Iterator[tuple[int, int, str]]:
        """The number, start and text of each whole line that was added to a file since."""
        path = self._folder / name
        row = cursor.execute("SELECT size, lines FROM read WHERE file = ?", (name,)).fetchone()
        start, number = row or (0, 0)
        if not path.is_file():
            return
        inode, modified, _ = _state(path)
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                yield number, start, line[:-1].decode(errors="replace")
                start, number = start + len(line), number + 1
        cursor.execute("INSERT OR REPLACE INTO read VALUES (?, ?, ?, ?, ?)", (name, inode, modified, start, number))

    def _add_devices(self, cursor: sqlite3.Cursor) -> dict[str, str]:
        """Keep the devices in what was added to the provenance since, and return them by the records' identities."""
        devices = {}
        for _, _, line in list(self._added(cursor, PROVENANCE)):
            try:
                entry = from_json(line)
                devices[entry["record"]] = entry["device"]
            except (ValueError, TypeError, KeyError):
                continue  # verifying reports it
        cursor.executemany("INSERT OR REPLACE INTO device VALUES (?, ?)", devices.items())
        return devices


def _add_workloads(cursor: sqlite3.Cursor, lines: list[tuple[int, int, str]]) -> None:
    for number, start, line in lines:
        workload = parse_workload(line)
        if workload is not None:
            keys = exact_key(workload.mod), anchor_key(workload.mod)
            cursor.execute("INSERT INTO workload VALUES (?, ?, ?, ?, ?)", (number, *keys, start, len(line.encode())))


def _add_records(cursor: sqlite3.Cursor, lines: list[tuple[int, int, str]], devices: dict[str, str]) -> None:
    """Only the few best of each group are inserted: inserting all to delete most took as long as reading the file."""
    groups: dict[tuple[int, str, str, bool], list[tuple[float, int, int]]] = {}
    for _, start, line in lines:
        record = parse_record(line)
        if record is None or not (seconds := record.run_seconds):
            continue
        identity = record.identity
        device = devices.get(identity) or _device_read_before(cursor, identity)
        group = (record.workload, record.arguments, device, record.by_rules)
        groups.setdefault(group, []).append((median(seconds), start, len(line.encode())))
    cursor.executemany(
        "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((*group, *place) for group, places in groups.items() for place in nsmallest(_BEST, places)),
    )


def _device_read_before(cursor: sqlite3.Cursor, identity: str) -> str:
    row = cursor.execute("SELECT name FROM device WHERE record = ?", (identity,)).fetchone()
    return row[0] if row else "unknown"


def _state(path: Path) -> tuple[int, int, int]:
    """By what a change of the file shows: its inode, time and size; zeros where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _versions() -> str:
    """What the keys and the tables depend on."""
    return f"index {_FORMAT}, tkc {version('tkc')}, apache-tvm {version('apache-tvm')}"
