"""Records on disk: what is committed is found, whatever happens to the process, the disk, or beside it."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tvm.s_tir.meta_schedule.database import JSONDatabase

from tests.database.samples import commit, product, provenance, record, seconds_in
from tkc.schedules.database import RecordStore
from tkc.schedules.database import store as files

_WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.database.samples import commit, product
from tkc.schedules.database import RecordStore
store = RecordStore(Path(sys.argv[2]))
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    commit(store, product(4 + number % 3), 1.0 + number, device=sys.argv[3])
    print(number, flush=True)
"""


def writer(folder: Path, first: int, last: int) -> subprocess.Popen[str]:
    """A process that commits records of ``first`` up to ``last`` seconds, and says each number once it has."""
    command = [sys.executable, "-c", _WRITER, str(Path(__file__).parents[2]), str(folder), str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_reads_back_what_it_wrote_and_so_does_tvm(tmp_path: Path) -> None:
    """Workloads once each; records with their provenance; MetaSchedule's own reader takes the files."""
    store = RecordStore(tmp_path)
    for n, seconds in ((4, 2.0), (8, 3.0), (4, 1.0)):
        commit(store, product(n), seconds, tile=2)
    again = RecordStore(tmp_path)
    assert [len(list(again.stored())), len(again.workloads())] == [3, 2]
    assert {entry.device for entry in again.provenance().values()} == {"a test machine"}
    assert len(again.provenance()) == 3
    assert [min(map(float, found.run_secs)) for found in again.records()] == [2.0, 3.0, 1.0]
    theirs = JSONDatabase(str(tmp_path / files.WORKLOADS), str(tmp_path / files.RECORDS))
    assert len(theirs.get_all_tuning_records()) == 3
    assert again.problems() == []


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Each workload has one line, though both add it, and each record its own workload and device."""
    writers = [writer(tmp_path, 0, 12), writer(tmp_path, 100, 112)]
    assert [process.wait(timeout=120) for process in writers] == [0, 0]
    store = RecordStore(tmp_path)
    assert seconds_in(store) == [1.0 + n for n in (*range(12), *range(100, 112))]
    assert len(store.workloads()) == 3 and store.problems() == []
    known = store.provenance()
    for found in store.stored():
        number = round(min(found.run_seconds)) - 1
        assert found.content[3][0][2][0] == 4 + number % 3
        assert known[found.identity].device == ("0" if number < 100 else "100")


@pytest.mark.daily(3)
def test_killed_writers_leave_what_they_committed(tmp_path: Path) -> None:
    """Kill −9 at any moment, again and again: every number that was said is there, once, and nothing is broken."""
    said: list[int] = []
    for attempt in range(5):
        process = writer(tmp_path, 1000 * attempt, 1000 * attempt + 500)
        assert process.stdout is not None
        said.append(int(process.stdout.readline()))
        time.sleep(0.01 * attempt)
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines(True) if line.endswith("\n")]
        process.wait()
    store = RecordStore(tmp_path)
    found = [round(seconds) - 1 for seconds in seconds_in(store)]
    assert set(said) <= set(found) and len(found) == len(set(found))
    # At most the record that was being written when each of them died is there though nobody heard of it.
    assert len(found) - len(said) <= 5
    commit(store, product(4), 0.5)
    assert 0.5 in seconds_in(RecordStore(tmp_path)) and RecordStore(tmp_path).problems() == []


@pytest.mark.parametrize("name", [files.WORKLOADS, files.PROVENANCE, files.RECORDS])
def test_a_line_that_was_cut_off_is_set_aside(tmp_path: Path, name: str) -> None:
    """A power cut in the middle of a write: what follows is whole, and what was left is kept in a file beside."""
    store = RecordStore(tmp_path)
    commit(store, product(4), 1.0)
    with (tmp_path / name).open("ab") as file:
        file.write(b'[0, [[["cut o')
    assert seconds_in(RecordStore(tmp_path)) == [1.0]
    commit(RecordStore(tmp_path), product(8), 2.0)
    assert seconds_in(RecordStore(tmp_path)) == [1.0, 2.0]
    assert RecordStore(tmp_path).problems() == []
    assert b"cut o" in (tmp_path / f"{name}.broken").read_bytes()


@pytest.mark.parametrize("fits", [0, 1, 10, 51])
def test_a_full_disk_stops_a_commit_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int) -> None:
    """Nothing of it stays, what was there does, and the error names the file; with room again it goes on."""
    store = RecordStore(tmp_path)
    commit(store, product(4), 1.0)
    left = fits

    def written(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", written)
    made = record(product(8), 2.0)
    failed = False
    for _ in range(80):
        try:
            store.commit(made.workload.mod, made, provenance())
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(tmp_path) in str(error)
            failed = True
            break
    assert failed
    monkeypatch.undo()
    complete = seconds_in(RecordStore(tmp_path))
    assert complete[0] == 1.0 and RecordStore(tmp_path).problems() == []
    store.commit(made.workload.mod, made, provenance())
    assert len(seconds_in(RecordStore(tmp_path))) == len(complete) + 1


def test_broken_lines_are_reported_and_the_others_used(tmp_path: Path) -> None:
    """A workload that cannot be read takes its records with it, and no others."""
    store = RecordStore(tmp_path)
    for n in (4, 8):
        commit(store, product(n), float(n))
    lines = (tmp_path / files.WORKLOADS).read_text().splitlines()
    (tmp_path / files.WORKLOADS).write_text("\n".join(["garbage", lines[1]]) + "\n")
    with (tmp_path / files.RECORDS).open("a") as file:
        file.write('{"no": "record"}\n[7, [[[], []], [1.0], {"kind": "llvm"}, [["TENSOR", "float32", [1]]]]]\n')
    broken = RecordStore(tmp_path)
    assert [(p.file, p.line) for p in broken.problems()] == [
        (files.WORKLOADS, 1),
        (files.RECORDS, 1),
        (files.RECORDS, 3),
        (files.RECORDS, 4),
    ]
    assert [min(map(float, found.run_secs)) for found in broken.records()] == [8.0]
