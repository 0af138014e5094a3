"""One target's records on disk: appended durably, by several processes at a time, read whatever happened to them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from filelock import FileLock
from pydantic_core import from_json, to_json
from tvm import tirx
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

from tkc.contracts import DEFAULT_SCHEDULE
from tkc.schedules.database.provenance import Provenance
from tkc.schedules.database.untrusted import lines, link_in, record_problem, workload_problem
from tkc.schedules.database.workloads import exact_key, same_function

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
PROVENANCE = "provenance.json"
FAILED_SECONDS = 1e10  # by which MetaSchedule knows a candidate that failed

_BLOCK = 1 << 20  # bytes
_FILES = (WORKLOADS, PROVENANCE, RECORDS)


@dataclass(frozen=True)
class Problem:
    """Something in a database that cannot be used: ``line`` of ``file`` (counted from 1), and why."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class StoredRecord:
    """One ``line`` of a target's records: the place of its workload among the workloads, and the record as JSON."""

    workload: int
    content: Sequence[Any]
    line: str

    @property
    def identity(self) -> str:
        """By what its provenance is found."""
        return identity_of(self.line)

    @property
    def run_seconds(self) -> list[float]:
        """The measured times of its runs; none for a candidate that failed."""
        seconds = [float(run) for run in self.content[1] or ()]
        return [] if any(run >= FAILED_SECONDS for run in seconds) else seconds

    @property
    def by_rules(self) -> bool:
        """Whether it says what the default rules' schedule takes; without its schedule being read."""
        return DEFAULT_SCHEDULE in self.line

    @property
    def arguments(self) -> str:
        """The shapes it was measured at, as text that is equal where they are."""
        return to_json(self.content[3]).decode()


class RecordStore:
    """The records of one target in one folder, which the first commit makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / ".lock")
        self._known: dict[str, list[int]] = {}
        self._modules: list[tvm.IRModule | None] = []
        self._read_to = 0

    def commit(self, mod: tvm.IRModule, record: TuningRecord, provenance: Provenance) -> None:
        """Keep ``record`` of the workload ``mod``. It is on disk when this returns, and else not there at all.

        Raises :class:`OSError` where it cannot be written, as on a full disk; what was there before stays as it was.
        """
        with self.changing():
            line = record_line(self.workload_index(mod), record.as_json())
            self.append(line, provenance)

    def changing(self) -> FileLock:
        """The lock under which the files may be changed; nobody else does meanwhile.

        Raises :class:`OSError` where a link would lead what is written to another place.
        """
        if (link := link_in(self.folder)) is not None:
            raise OSError(errno.ELOOP, "a link in a tuning database leads out of it; nothing is written", str(link))
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._lock

    def workload_index(self, mod: tvm.IRModule) -> int:
        """The place of ``mod`` among the workloads, to which it is added if it is new. Hold the lock."""
        self._catch_up()
        key = exact_key(mod)
        for index in self._known.get(key, ()):
            known = self._modules[index]
            if known is not None and same_function(known, mod):
                return index
        _append(self.folder / WORKLOADS, json.dumps(Workload(mod).as_json()))
        self._catch_up()
        return len(self._modules) - 1

    def append(self, line: str, provenance: Provenance | None) -> None:
        """Add a record's line, its provenance first, so that no record is ever without. Hold the lock."""
        if provenance is not None:
            _append(self.folder / PROVENANCE, json.dumps({"record": identity_of(line), **asdict(provenance)}))
        _append(self.folder / RECORDS, line)

    def workloads(self) -> list[Workload | None]:
        """Every workload in its place; ``None`` where its line cannot be read."""
        return [parse_workload(line) for line in _lines(self.folder / WORKLOADS)]

    def stored(self) -> Iterator[StoredRecord]:
        """Every record that can be read, in the order of the file, without looking into its schedule."""
        for line in _lines(self.folder / RECORDS):
            if (record := parse_record(line)) is not None:
                yield record

    def records(self) -> list[TuningRecord]:
        """Every record that can be read, those of failures too."""
        workloads = self.workloads()
        found = []
        for stored in self.stored():
            workload = workloads[stored.workload] if stored.workload < len(workloads) else None
            if workload is not None and (record := tuning_record(stored, workload)) is not None:
                found.append(record)
        return found

    def provenance(self) -> dict[str, Provenance]:
        """What is known of each record, by its identity."""
        known = {}
        for line in _lines(self.folder / PROVENANCE):
            if (entry := parse_provenance(line)) is not None:
                known[entry[0]] = entry[1]
        return known

    def problems(self) -> list[Problem]:
        """Every line that cannot be used."""
        workloads = self.workloads()
        found = [
            Problem(WORKLOADS, number, problem_of_workload(line))
            for number, (workload, line) in enumerate(zip(workloads, _lines(self.folder / WORKLOADS), strict=False), 1)
            if workload is None
        ]
        for number, line in enumerate(_lines(self.folder / RECORDS), 1):
            stored = parse_record(line)
            if stored is None:
                found.append(Problem(RECORDS, number, problem_of_record(line)))
            elif stored.workload >= len(workloads) or workloads[stored.workload] is None:
                found.append(Problem(RECORDS, number, f"its workload, line {stored.workload + 1}, is missing"))
        found += [
            Problem(PROVENANCE, number, "no provenance can be read from it")
            for number, line in enumerate(_lines(self.folder / PROVENANCE), 1)
            if parse_provenance(line) is None
        ]
        if (link := link_in(self.folder)) is not None:
            found.append(Problem(link.name, 0, "it is a link, so nothing is written here"))
        return found

    def replace_records(self, kept: Iterable[StoredRecord]) -> None:
        """Keep these records and no others, with what is known of them. Hold the lock.

        Workloads stay, since records refer to their places. Each file is replaced as a whole, records first: at no
        moment does a record lack its workload or its provenance.
        """
        lines = [record.line for record in kept]
        known = {identity_of(line) for line in lines}
        provenance = [
            line
            for line in _lines(self.folder / PROVENANCE)
            if (entry := parse_provenance(line)) is not None and entry[0] in known
        ]
        _replace(self.folder / RECORDS, lines)
        _replace(self.folder / PROVENANCE, provenance)

    def _catch_up(self) -> None:
        """Read the workloads that were added since; put aside what a write that was cut off left of a line."""
        for name in _FILES:
            _set_torn_end_aside(self.folder / name)
        path = self.folder / WORKLOADS
        if not path.is_file():
            return
        for _, _, line in lines(path, self._read_to):
            workload = None if line is None else parse_workload(line.decode(errors="replace"))
            self._modules.append(None if workload is None else workload.mod)
            if workload is not None:
                self._known.setdefault(exact_key(workload.mod), []).append(len(self._modules) - 1)
        self._read_to = path.stat().st_size  # all of it, since torn ends are gone and the lock is held


def record_line(workload: int, content: Sequence[Any]) -> str:
    """The line of a record as MetaSchedule writes it."""
    return json.dumps([workload, content])


def identity_of(line: str) -> str:
    """By what provenance knows a record's line."""
    return hashlib.sha256(line.encode()).hexdigest()


def tuning_record(stored: StoredRecord, workload: Workload) -> TuningRecord | None:
    """The record in MetaSchedule's form; ``None`` where this version cannot read its schedule."""
    try:
        return TuningRecord.from_json(stored.content, workload)
    except Exception:  # TVM raises whatever its parser stumbles over
        return None


def _append(path: Path, line: str) -> None:
    """Add ``line``, on disk when this returns; of one that does not fit nothing stays."""
    with path.open("ab", buffering=0) as file:
        end, rest = file.tell(), memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            raise OSError(error.errno, f"cannot write to the tuning database: {error.strerror}", str(path)) from error


def _replace(path: Path, lines: Iterable[str]) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.writelines(line.encode() + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _set_torn_end_aside(path: Path) -> None:
    """Move what follows the last end of a line, left by a write that was cut off, to a file beside it."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        end = whole = file.seek(0, os.SEEK_END)
        while whole:  # backwards, for what was cut off may be of any length
            block = min(whole, _BLOCK)
            file.seek(whole - block)
            if (found := file.read(block).rfind(b"\n")) >= 0:
                whole += found + 1 - block
                break
            whole -= block
        if whole == end:
            return
        file.seek(whole)
        with path.with_name(path.name + ".broken").open("ab") as aside:
            shutil.copyfileobj(file, aside, _BLOCK)
            aside.write(b"\n")
        file.truncate(whole)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file that is written in another process meanwhile: a last one without an end is not there yet. One
    that is too long is empty.
    """
    for _, _, line in lines(path):
        yield "" if line is None else line.decode(errors="replace")


def _json(line: str) -> Any:
    try:
        return from_json(line)  # in two thirds of the time that json.loads takes
    except ValueError:
        return None


def parse_workload(line: str) -> Workload | None:
    """The workload of a line; ``None`` where there is none."""
    content = _json(line)
    if workload_problem(content) is not None:
        return None
    try:
        workload = Workload.from_json(content)
        return workload if isinstance(workload.mod["main"], tirx.PrimFunc) else None
    except Exception:  # TVM raises whatever its parser stumbles over
        return None


def parse_record(line: str) -> StoredRecord | None:
    """The record of a line; ``None`` where there is none. Its schedule is not tried."""
    content = _json(line)
    return None if record_problem(content) is not None else StoredRecord(content[0], content[1], line)


def problem_of_workload(line: str) -> str:
    """Why :func:`parse_workload` found none in ``line``."""
    return workload_problem(_json(line)) or "no workload can be read from it"


def problem_of_record(line: str) -> str:
    """Why :func:`parse_record` found none in ``line``."""
    return record_problem(_json(line)) or "no record can be read from it"


def parse_provenance(line: str) -> tuple[str, Provenance] | None:
    """The identity of a record, and what is known of it."""
    entry = _json(line)
    try:
        identity = entry.pop("record")
        found = Provenance(**entry)
    except (AttributeError, KeyError, TypeError):
        return None
    texts = (identity, found.device, found.target, found.time, found.error or "")
    return (identity, found) if all(isinstance(text, str) for text in texts) else None
