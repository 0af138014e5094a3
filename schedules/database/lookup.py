"""Finds the records of a function in databases: those of the function itself, else those of its anchor block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tvm import IRModule, tirx
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

from tkc.kernels.target import Target
from tkc.schedules.database.index import Index
from tkc.schedules.database.provenance import this_device
from tkc.schedules.database.store import WORKLOADS, StoredRecord, tuning_record
from tkc.schedules.database.workloads import anchor_key, as_workload, exact_key, same_anchor, same_function
from tkc.schedules.database_folders import target_folder
from tkc.schedules.target import same_vectors, tvm_target


@dataclass(frozen=True)
class Found:
    """The records of one ``workload``, best first, some for each set of arguments it was measured with; as ``stored``.

    ``match`` says whether it is the function itself or one with the same anchor block. ``device`` measured the best of
    them; ``other_device`` marks that it is not this machine's. ``root`` is the database they are from.
    """

    workload: Workload
    stored: tuple[StoredRecord, ...]
    match: Literal["exact", "anchor"]
    device: str
    other_device: bool
    root: Path

    @cached_property
    def records(self) -> tuple[TuningRecord, ...]:
        """Those that this version can read, in MetaSchedule's form; reading a schedule takes as long as a lookup."""
        read = (tuning_record(stored, self.workload) for stored in self.stored)
        return tuple(record for record in read if record is not None)


class Lookup:
    """The records for one target in several databases, of which earlier ones come first.

    A function's own records come before those of its anchor block, whatever database they are in; this machine's
    device before others of the same architecture. Records of CPUs whose vector registers are of another size are left
    out: their tiles do not suit this one's, and the default rules, which know it, were faster where both were measured.
    """

    def __init__(self, roots: Sequence[Path], target: Target) -> None:
        folders = ((root, target_folder(root, target)) for root in roots)
        self._indexes = [(root, Index(folder)) for root, folder in folders if (folder / WORKLOADS).is_file()]
        self._device = this_device(target) if self._indexes else ""
        self._target = tvm_target(target)

    def find(self, func: tirx.PrimFunc) -> Found | None:
        """The records for ``func``; ``None`` where there are none."""
        if not self._indexes:
            return None
        workload = as_workload(func)
        key = exact_key(workload)
        for root, index in self._indexes:
            if (found := self._first(root, index, workload, index.exact(key), "exact")) is not None:
                return found
        if (anchor := anchor_key(workload)) is None:
            return None
        for root, index in self._indexes:
            if (found := self._first(root, index, workload, index.anchored(anchor), "anchor")) is not None:
                return found
        return None

    def _first(
        self, root: Path, index: Index, wanted: IRModule, places: Sequence[int], match: Literal["exact", "anchor"]
    ) -> Found | None:
        same = same_function if match == "exact" else same_anchor
        for place in places:
            workload = index.workload(place)
            if workload is None or not same(workload.mod, wanted):
                continue
            best = index.best(place)
            own = [entry for entry in best if entry.device == self._device] or best
            read = [(entry.device, line) for entry in own if (line := index.record(entry)) is not None]
            stored = [(device, record) for device, record in read if same_vectors(record.content[2], self._target)]
            if stored:
                device = stored[0][0]
                records = tuple(record for _, record in stored)
                return Found(workload, records, match, device, device != self._device, root)
        return None
