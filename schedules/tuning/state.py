"""What a job remembers besides its records, so that it can be resumed: one small JSON file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from tkc.schedules.tuning.progress import Point


class UnreadableStateError(ValueError):
    """A file that holds no job's state."""


@dataclass
class JobState:
    """Trials spent on each task, by its key, seconds spent, and the gain on the way."""

    trials: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)


_ADAPTER = TypeAdapter(JobState)
_MOST_BYTES = 64 << 20  # a point of the curve has some 50, and a job some thousands of them


class StateFile:
    """The state of one job in the folder of its database, held by one process at a time.

    A second job over the same tasks, at the same time, gets a file of its own.
    """

    def __init__(self, folder: Path, tasks: Iterable[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(" ".join(sorted(tasks)).encode()).hexdigest()[:16]
        number = 1
        while True:
            self.path = folder / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
            self._lock = FileLock(self.path.with_suffix(".lock"))
            try:
                self._lock.acquire(blocking=False)
                return
            except Timeout:
                number += 1

    def load(self) -> JobState:
        """The state that was saved last; a new one if there is none.

        Raises :class:`UnreadableStateError` for a file that holds none.
        """
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            return _ADAPTER.validate_json(self.path.read_bytes(), strict=True)
        except FileNotFoundError:
            return JobState()
        except ValueError as error:
            raise UnreadableStateError(
                f"{self.path} is no job's state; delete it, and the records that it counted are used all the same"
            ) from error

    def save(self, state: JobState) -> None:
        """Write ``state``; the file is whole at any moment."""
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump(dataclasses.asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, self.path)

    def close(self) -> None:
        """Let other processes have the file."""
        self._lock.release()
