"""Finding a function's records: by what it computes, by its anchor block, on which device, and how fast."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from samples import CPU, commit, product, record

from tkc.kernels.target import Target
from tkc.schedules.database import Lookup, RecordStore, as_workload, target_folder
from tkc.schedules.database.index import FILE
from tkc.schedules.database.provenance import this_device
from tkc.schedules.database.store import record_line
from tkc.schedules.database.workloads import same_function


def seconds_of(lookup: Lookup, *args: object, **options: object) -> list[float] | None:
    """The least time of each record found, or ``None``."""
    found = lookup.find(product(*args, **options))  # type: ignore[arg-type]
    return None if found is None else [min(map(float, record.run_secs)) for record in found.records]


def test_finds_the_best_records_first(tmp_path: Path) -> None:
    """A few of them, so that there is a next where the best no longer applies; failures are none."""
    store = RecordStore(target_folder(tmp_path, CPU))
    for seconds in (5.0, 1.0, 1e10, 3.0, 2.0, 4.0):
        commit(store, product(4), seconds)
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [1.0, 2.0, 3.0]
    assert Lookup([tmp_path], CPU).find(product(8, "exp")) is None
    assert Lookup([tmp_path / "nowhere"], CPU).find(product(4)) is None


def test_names_and_the_order_of_parameters_do_not_matter(tmp_path: Path) -> None:
    """It is the same function, exactly."""
    commit(RecordStore(target_folder(tmp_path, CPU)), product(4), 1.0)
    found = Lookup([tmp_path], CPU).find(product(4, swapped=True))
    assert found is not None and found.match == "exact"


def test_an_anchor_serves_another_epilogue(tmp_path: Path) -> None:
    """Where the function itself has no records; its own come first, even from a later database."""
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    commit(RecordStore(target_folder(own, CPU)), product(4), 1.0)
    lookup = Lookup([own, shipped], CPU)
    found = lookup.find(product(4, "exp"))
    assert found is not None and (found.match, found.root) == ("anchor", own)
    commit(RecordStore(target_folder(shipped, CPU)), product(4, "exp"), 9.0)
    found = Lookup([own, shipped], CPU).find(product(4, "exp"))
    assert found is not None and (found.match, found.root) == ("exact", shipped)


def test_another_device_is_marked_and_another_target_never_used(tmp_path: Path) -> None:
    """This machine's slower record comes before another's faster one."""
    commit(RecordStore(target_folder(tmp_path, CPU)), product(4), 1.0, device="elsewhere")
    found = Lookup([tmp_path], CPU).find(product(4))
    assert found is not None and found.other_device and found.device == "elsewhere"
    commit(RecordStore(target_folder(tmp_path, CPU)), product(4), 2.0, device=this_device(CPU))
    found = Lookup([tmp_path], CPU).find(product(4))
    assert found is not None and not found.other_device
    assert [min(map(float, r.run_secs)) for r in found.records] == [2.0]
    assert Lookup([tmp_path], Target.parse("cuda:sm_90a")).find(product(4)) is None


def test_the_index_follows_the_files(tmp_path: Path) -> None:
    """What was added, replaced, or made by a broken index; and where none can be written."""
    folder = target_folder(tmp_path, CPU)
    store = RecordStore(folder)
    commit(store, product(4), 3.0)
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [3.0]
    commit(store, product(4), 1.0)
    commit(store, product(8), 7.0)
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [1.0, 3.0]
    assert seconds_of(Lookup([tmp_path], CPU), 8) == [7.0]
    with store.changing():
        store.replace_records([found for found in store.stored() if min(found.run_seconds) != 1.0])
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [3.0]
    (folder / FILE).write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [3.0]
    assert (folder / FILE).read_bytes().startswith(b"SQLite format 3")


def test_agrees_with_a_search_through_everything(tmp_path: Path) -> None:
    """For functions in random order with random times, the best of those that are the same."""
    generator = random.Random(0)
    store = RecordStore(target_folder(tmp_path, CPU))
    for _ in range(40):
        func = product(generator.choice([4, 8, 12]), generator.choice(["relu", "exp"]), generator.random() < 0.5)
        commit(store, func, generator.choice([1e10, generator.random()]), generator.choice([1, 2, 4]))
    lookup = Lookup([tmp_path], CPU)
    everything = store.records()
    for n in (4, 8, 12):
        for epilogue in ("relu", "exp"):
            wanted = as_workload(product(n, epilogue))
            times = [min(map(float, r.run_secs)) for r in everything if same_function(r.workload.mod, wanted)]
            measured = sorted(seconds for seconds in times if seconds < 1e10)
            found = lookup.find(product(n, epilogue))
            exact = found is not None and found.match == "exact"
            assert exact == bool(measured)
            if found is not None and exact:
                assert min(map(float, found.records[0].run_secs)) == measured[0]


@pytest.mark.speed
def test_many_records_load_and_are_found_fast(tmp_path: Path) -> None:
    """5,000 of them: opened in a second with an index, and a function looked up in a millisecond, known or not."""
    folder = target_folder(tmp_path, CPU)
    store = RecordStore(folder)
    made = record(product(4), 1.0)
    with store.changing():
        place = store.workload_index(made.workload.mod)
    line = record_line(place, made.as_json())
    with (folder / "database_tuning_record.json").open("w") as file:
        file.writelines(line.replace("1.5", str(1.5 + number)) + "\n" for number in range(5000))
    Lookup([tmp_path], CPU)
    start = time.perf_counter()
    lookup = Lookup([tmp_path], CPU)
    opened = time.perf_counter()
    known, missing = product(4), product(64, "exp")
    assert lookup.find(missing) is None
    begun = time.perf_counter()
    for _ in range(10):
        assert lookup.find(missing) is None
        assert lookup.find(known) is not None
    looked_up = (time.perf_counter() - begun) / 20
    assert opened - start < 1.0 and looked_up < 1e-3
    assert os.path.getsize(folder / FILE) < os.path.getsize(folder / "database_tuning_record.json")
