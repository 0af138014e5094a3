"""Tuning databases: MetaSchedule's JSON files, one folder a target, with an index to find a function's records by."""

from tkc.schedules.database.lookup import Found, Lookup
from tkc.schedules.database.provenance import Provenance, this_device, this_provenance
from tkc.schedules.database.store import FAILED_SECONDS, Problem, RecordStore, StoredRecord
from tkc.schedules.database.workloads import as_workload, exact_key
from tkc.schedules.database_folders import shipped_database, target_folder, user_database

__all__ = [
    "FAILED_SECONDS",
    "Found",
    "Lookup",
    "Problem",
    "Provenance",
    "RecordStore",
    "StoredRecord",
    "as_workload",
    "exact_key",
    "shipped_database",
    "target_folder",
    "this_device",
    "this_provenance",
    "user_database",
]
