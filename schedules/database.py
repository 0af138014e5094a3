"""Schedules that tuning found: MetaSchedule's JSON databases, one folder a target."""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.database import Database, JSONDatabase

from tkc.kernels.target import Target

_WORKLOADS = "database_workload.json"
_RECORDS = "database_tuning_record.json"


def target_folder(root: Path | str, target: Target) -> Path:
    """Where in the database folder ``root`` the records of ``target`` stand."""
    return Path(root) / str(target).replace(":", "-")


def open_database(root: Path | str, target: Target) -> Database | None:
    """The records for ``target`` in the database folder ``root``; ``None`` if there are none.

    Raises :class:`ValueError` for files that are no database.
    """
    folder = target_folder(root, target)
    if not (folder / _WORKLOADS).is_file() or not (folder / _RECORDS).is_file():
        return None
    try:
        return JSONDatabase(str(folder / _WORKLOADS), str(folder / _RECORDS))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"the tuning database in {folder} cannot be read; delete it, or tune again") from error


def as_workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """The module by which databases know ``func``: the function alone, its parameters in a normal form."""
    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)


def tuned(database: Database, func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """The best schedule that ``database`` has for functions structurally equal to ``func``; ``None`` if it has none.

    Raises what TVM raises if the record's trace does not apply, as one written by another version may not.
    """
    record = database.query_tuning_record(as_workload(func), target, "main")
    if record is None:
        return None
    sch = s_tir.Schedule(record.workload.mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    return sch
