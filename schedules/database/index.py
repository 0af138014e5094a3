"""Which lines of a target's files hold the records of a function: a cache beside them, made again when it is stale."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tvm.s_tir.meta_schedule.database import Workload

from tkc.schedules.database.store import (
    PROVENANCE,
    RECORDS,
    WORKLOADS,
    StoredRecord,
    parse_provenance,
    parse_record,
    parse_workload,
    problem_of_record,
    problem_of_workload,
)
from tkc.schedules.database.untrusted import MOST_LINE, lines, link_in
from tkc.schedules.database.workloads import anchor_key, exact_key

_LOG = logging.getLogger(__name__)
_NAMED = 3  # lines that are left out

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
        if link_in(folder) is not None:  # SQLite would write to wherever it leads
            self._open_in_memory()
            return
        try:
            self._open()
        except sqlite3.OperationalError:  # nothing can be written here
            self._open_in_memory()
        except sqlite3.DatabaseError:  # what is there is no index any more
            try:
                (folder / FILE).unlink()
                self._open()
            except (OSError, sqlite3.Error):
                self._open_in_memory()

    def _open(self) -> None:
        self._database = sqlite3.connect(self._folder / FILE, timeout=_PATIENCE)
        if _schema(self._database) not in (set(), _own_schema()):
            self._database.close()
            raise sqlite3.DatabaseError("its tables are not those of an index")
        self._catch_up()

    def _open_in_memory(self) -> None:
        self._database = sqlite3.connect(":memory:")
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
            file.seek(max(start, 0))
            return file.read(min(max(length, 0), MOST_LINE)).decode(errors="replace")

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
                # As far as records are written now, their provenance is, and their workloads are.
                end = _state(self._folder / RECORDS)[2]
                self._add_devices(cursor)
                refused = [*self._add_workloads(cursor), *self._add_records(cursor, end)]
                cursor.execute(_DROP_SLOWER, (_BEST,))
        for name, number, reason in refused[:_NAMED]:
            _LOG.warning("tuning database: %s, line %d is left out: %s", self._folder / name, number, reason)
        if len(refused) > _NAMED:
            _LOG.warning("%d more lines are left out; tkc db verify lists them", len(refused) - _NAMED)

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

    def _added(self, cursor: sqlite3.Cursor, name: str, end: int | None = None) -> Iterator[tuple[int, int, str]]:
        """The number, start and text of each whole line that was added to a file since, and before ``end``."""
        path = self._folder / name
        row = cursor.execute("SELECT size, lines FROM read WHERE file = ?", (name,)).fetchone()
        start, number = row or (0, 0)
        if not path.is_file():
            return
        inode, modified, _ = _state(path)
        for place, after, line in lines(path, start, end):
            yield number, place, "" if line is None else line.decode(errors="replace")
            number, start = number + 1, after
        cursor.execute("INSERT OR REPLACE INTO read VALUES (?, ?, ?, ?, ?)", (name, inode, modified, start, number))

    def _add_devices(self, cursor: sqlite3.Cursor) -> None:
        """Keep the devices in what was added to the provenance since."""
        for _, _, line in self._added(cursor.connection.cursor(), PROVENANCE):
            if (entry := parse_provenance(line)) is not None:  # verifying reports others
                cursor.execute("INSERT OR REPLACE INTO device VALUES (?, ?)", (entry[0], entry[1].device))

    def _add_workloads(self, cursor: sqlite3.Cursor) -> Iterator[tuple[str, int, str]]:
        """Keep the workloads that were added; yields the file, the line and the reason of each that is none."""
        for number, start, line in self._added(cursor.connection.cursor(), WORKLOADS):
            workload = parse_workload(line)
            if workload is None:
                yield WORKLOADS, number + 1, problem_of_workload(line)
                continue
            keys = exact_key(workload.mod), anchor_key(workload.mod)
            cursor.execute("INSERT INTO workload VALUES (?, ?, ?, ?, ?)", (number, *keys, start, len(line.encode())))

    def _add_records(self, cursor: sqlite3.Cursor, end: int) -> Iterator[tuple[str, int, str]]:
        """Only the few best of each group are inserted: inserting all to delete most took as long as reading the file.

        Yields the file, the line and the reason of each that is none.
        """
        groups: dict[tuple[int, str, str, bool], list[tuple[float, int, int]]] = {}
        for number, start, line in self._added(cursor.connection.cursor(), RECORDS, end):
            record = parse_record(line)
            if record is None:
                yield RECORDS, number + 1, problem_of_record(line)
            elif seconds := record.run_seconds:
                device = _device_of(cursor, record.identity)
                group = (record.workload, record.arguments, device, record.by_rules)
                best = groups.setdefault(group, [])
                best.append((median(seconds), start, len(line.encode())))
                best[:] = sorted(best)[:_BEST]
        cursor.executemany(
            "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((*group, *place) for group, places in groups.items() for place in places),
        )


def _device_of(cursor: sqlite3.Cursor, identity: str) -> str:
    row = cursor.execute("SELECT name FROM device WHERE record = ?", (identity,)).fetchone()
    return row[0] if row else "unknown"


def _schema(database: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


@cache
def _own_schema() -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_TABLES)
        return _schema(database)


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
