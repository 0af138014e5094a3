"""Tests for what a job remembers between its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tkc.schedules.tuning.progress import Point
from tkc.schedules.tuning.state import JobState, StateFile, UnreadableStateError


def test_a_saved_state_is_loaded_by_the_job_over_the_same_tasks(tmp_path: Path) -> None:
    """In whatever order they come."""
    state = JobState({"a": 3}, {"a": 1}, {"a": 2}, 12.5, [Point(0, 1.0), Point(3, 1.5)])
    first = StateFile(tmp_path, ["a", "b"])
    first.save(state)
    first.close()
    again = StateFile(tmp_path, ["b", "a"])
    assert again.load() == state
    again.close()


def test_another_job_starts_anew(tmp_path: Path) -> None:
    """Other tasks are another job."""
    first, other = StateFile(tmp_path, ["a"]), StateFile(tmp_path, ["b"])
    first.save(JobState({"a": 3}))
    assert other.load() == JobState()


def test_two_jobs_at_the_same_time_keep_apart(tmp_path: Path) -> None:
    """Neither overwrites what the other spent."""
    first, second = StateFile(tmp_path, ["a"]), StateFile(tmp_path, ["a"])
    first.save(JobState({"a": 3}))
    second.save(JobState({"a": 5}))
    assert (first.load(), second.load()) == (JobState({"a": 3}), JobState({"a": 5}))


def test_a_file_that_is_no_state_is_named(tmp_path: Path) -> None:
    """With what to do about it."""
    file = StateFile(tmp_path, ["a"])
    file.path.write_text('{"trials": ')
    with pytest.raises(UnreadableStateError, match=f"{file.path.name} is no job's state; delete it"):
        file.load()


def test_a_save_that_fails_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    file = StateFile(tmp_path, ["a"])
    file.save(JobState({"a": 3}))
    monkeypatch.setattr("os.fsync", _full_disk)
    with pytest.raises(OSError, match="no space"):
        file.save(JobState({"a": 4}))
    assert file.load() == JobState({"a": 3})


def _full_disk(_descriptor: int) -> None:
    raise OSError("no space left on device")
