"""Measured configurations of kernels, and the file that keeps them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from tkc.kernels.requests import KernelRequest

FILE = "kernels.json"
_FORMAT = 1
_MOST_BYTES = 256 << 20  # the file that comes with tkc has 0.3 million


@dataclass(frozen=True)
class KernelRecord:
    """The fastest configuration of one kernel at one set of run-time sizes, and the median time it took there.

    ``kernel``, ``parameters``, ``configuration`` and ``target`` are a :class:`~tkc.kernels.KernelRequest` as JSON.
    ``single`` is one that was measured for a model, at the sizes that this has: it says nothing of far smaller or far
    larger ones. Others belong to a table that goes from few tokens to many.
    """

    kernel: str
    parameters: Mapping[str, Any]
    configuration: Mapping[str, Any]
    target: str
    sizes: Mapping[str, int]
    milliseconds: float
    device: str
    versions: Mapping[str, str]
    time: str
    single: bool = False

    @property
    def request(self) -> KernelRequest:
        """The kernel that was measured; :class:`ValueError` where this version has no such parameters."""
        return KernelRequest.from_json(dataclasses.asdict(self))

    @property
    def measured(self) -> tuple[Any, ...]:
        """What two records of the same measurement have in common: all but the result and its circumstances.

        Parameters that a kernel had none of when it was recorded have their defaults.
        """
        try:
            parameters = self.request.to_json()["parameters"]
        except (KeyError, ValueError):
            parameters = self.parameters
        return (self.kernel, json.dumps([parameters, self.sizes], sort_keys=True), self.target, self.device)


@dataclass(frozen=True)
class _File:
    format: int
    records: tuple[KernelRecord, ...]


def read_records(folder: Path) -> tuple[KernelRecord, ...]:
    """The records in one target's database folder; none where it has no file of them.

    Raises :class:`ValueError` for a file that is no such, or of a newer format.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large for kernel records ({path.stat().st_size >> 20} MiB); delete it")
    try:
        content = TypeAdapter(_File).validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no kernel records; delete it, or tune the kernels again") from error
    if content.format > _FORMAT:
        raise ValueError(f"{path} has the format {content.format}, and this version reads up to {_FORMAT}; update tkc")
    return content.records


def write_records(folder: Path, records: Iterable[KernelRecord]) -> None:
    """Add ``records`` to a target's database folder, each in place of an older one of the same measurement.

    The file is replaced as a whole or not at all, by one process at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{FILE}.lock"):
        _write_merged(folder, records)


def _write_merged(folder: Path, records: Iterable[KernelRecord]) -> None:
    kept: dict[tuple[Any, ...], KernelRecord] = {}
    for record in (*read_records(folder), *records):
        # What a table has stays the table's, whoever measures it again: other sizes are chosen by it.
        older = kept.get(record.measured)
        in_table = record.single and older is not None and not older.single
        kept[record.measured] = dataclasses.replace(record, single=False) if in_table else record
    ordered = tuple(kept[key] for key in sorted(kept))
    new = folder / f"{FILE}.new"
    new.write_bytes(TypeAdapter(_File).dump_json(_File(_FORMAT, ordered), indent=1) + b"\n")
    new.replace(folder / FILE)
