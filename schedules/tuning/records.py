"""What a tuning job needs of a database: every record there is, and a place for the next."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Protocol

from tvm.s_tir.meta_schedule.database import TuningRecord

from tkc.schedules.database import FAILED_SECONDS


class Records(Protocol):
    """Records of one target."""

    def all(self) -> Sequence[TuningRecord]:
        """Every record, those of failures too."""

    def commit(self, record: TuningRecord, error: str | None = None) -> None:
        """Keep ``record``, durably; ``error`` says why it failed, if it did."""


def succeeded(record: TuningRecord) -> bool:
    """Whether ``record`` has a time."""
    return bool(record.run_secs) and all(float(run) < FAILED_SECONDS for run in record.run_secs)


def seconds_of(record: TuningRecord) -> float:
    """The median of its runs."""
    return median(float(run) for run in record.run_secs)
