"""A tuning job's records in a database folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tvm.s_tir.meta_schedule.database import TuningRecord

from tkc.kernels.target import Target
from tkc.schedules.database import RecordStore, target_folder, this_provenance


class StoredRecords:
    """The records of ``target`` in the database folder ``root``; those committed are marked as measured on ``device``
    (this machine's, if it is left out).
    """

    def __init__(self, root: Path, target: Target, device: str | None = None) -> None:
        self._store = RecordStore(target_folder(root, target))
        self._target = target
        self._device = device

    def all(self) -> Sequence[TuningRecord]:
        """Every record, those of failures too."""
        return self._store.records()

    def commit(self, record: TuningRecord, error: str | None = None) -> None:
        """Keep ``record``, durably; ``error`` says why it failed, if it did."""
        provenance = replace(this_provenance(self._target), error=error)
        if self._device is not None:
            provenance = replace(provenance, device=self._device)
        self._store.commit(record.workload.mod, record, provenance)
