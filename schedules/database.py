"""Schedules that tuning found: MetaSchedule's JSON databases, one folder a target."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.database import Database, MemoryDatabase, TuningRecord, Workload

from tkc.kernels.target import Target

_WORKLOADS = "database_workload.json"
_RECORDS = "database_tuning_record.json"


def target_folder(root: Path | str, target: Target) -> Path:
    """Where in the database folder ``root`` the records of ``target`` stand."""
    return Path(root) / str(target).replace(":", "-")


def open_database(root: Path | str, target: Target) -> Database | None:
    """The records for ``target`` in the database folder ``root``; ``None`` if there are none.

    Records whose schedule no longer applies to their function, as those of another TVM version may not, are left out
    with a warning. Raises :class:`ValueError` for files that are no database.
    """
    folder = target_folder(root, target)
    if not (folder / _WORKLOADS).is_file() or not (folder / _RECORDS).is_file():
        return None
    try:
        return _read(folder)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"the tuning database in {folder} cannot be read; delete it, or tune again") from error


def _read(folder: Path) -> Database:
    # JSONDatabase would do, but refuses to open a database with one record that does not apply.
    database = MemoryDatabase()
    lines = (folder / _WORKLOADS).read_text().splitlines()
    workloads = [database.commit_workload(Workload.from_json(json.loads(line)).mod) for line in lines]
    records = (folder / _RECORDS).read_text().splitlines()
    stale = 0
    for line in records:
        workload, record = json.loads(line)
        try:
            database.commit_tuning_record(TuningRecord.from_json(record, workloads[workload]))
        except s_tir.ScheduleError:
            stale += 1
    if stale:
        warnings.warn(f"{stale} of {len(records)} tuning records in {folder} do not apply; tune again", stacklevel=3)
    return database


def as_workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """The module by which databases know ``func``: the function alone, its parameters in a normal form."""
    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)


def tuned(database: Database, func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """The best schedule that ``database`` has for functions structurally equal to ``func``; ``None`` if it has none."""
    record = database.query_tuning_record(as_workload(func), target, "main")
    if record is None:
        return None
    sch = s_tir.Schedule(record.workload.mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    return sch
