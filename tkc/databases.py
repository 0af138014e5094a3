"""The tuning databases that a compilation consults: the given one or the user's own, then the one that is shipped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from tkc.errors import UsageError
from tkc.kernels import Target
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.records import read_records
from tkc.schedules.database_folders import shipped_database, target_folder, user_database

Database = str | os.PathLike[str] | Literal[False] | None
"""A database's folder; ``None`` for the user's own, ``False`` for none at all, not even the shipped one."""


def database_roots(database: Database) -> list[Path]:
    """The folders to look in, in order. Raises :class:`UsageError` for a given one that does not exist."""
    if isinstance(database, bool):
        if database:
            raise UsageError("database=True names no folder; leave it out for your own tuning database")
        return []
    if database is not None and not Path(database).is_dir():
        raise UsageError(f"there is no tuning database folder {database}")
    return [user_database() if database is None else Path(database), shipped_database()]


def kernel_choices(
    database: Database, target: Target, batch_invariant: bool = False, *, libraries: bool = True
) -> RecordedChoices:
    """How kernels choose their configurations for ``target``. Raises :class:`UsageError` for records that are none.

    ``batch_invariant`` is as in :func:`tkc.compile`. Without ``libraries``, none is a call of a library.
    """
    return _choices(database_roots(database), target, batch_invariant, libraries)


def tuning_choices(root: Path, target: Target, *, libraries: bool = True) -> RecordedChoices:
    """As :func:`kernel_choices` of a database that is tuned into, whose folder need not exist yet."""
    return _choices([root, shipped_database()], target, False, libraries)


def _choices(roots: Iterable[Path], target: Target, batch_invariant: bool, libraries: bool) -> RecordedChoices:
    try:
        records = [record for root in roots for record in read_records(target_folder(root, target))]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not records:
        return RecordedChoices((), batch_invariant=batch_invariant, estimates=True, libraries=libraries)
    from tkc.schedules.database import this_device

    return RecordedChoices(records, this_device(target), batch_invariant, estimates=True, libraries=libraries)
