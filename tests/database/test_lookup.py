"""Finding a function's records: by what it computes, by its anchor block, on which device, and how fast."""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm

from tests.database.samples import CPU, commit, commit_default, product, provenance, record
from tkc.kernels.target import Target
from tkc.schedules.database import Lookup, RecordStore, as_workload, target_folder
from tkc.schedules.database.index import FILE, Index
from tkc.schedules.database.provenance import this_device
from tkc.schedules.database.store import RECORDS, record_line
from tkc.schedules.database.workloads import same_function
from tkc.schedules.target import tvm_target, vector_bits


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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="has CPUs of several vector sizes")
def test_records_of_cpus_with_other_vectors_are_left_out(tmp_path: Path) -> None:
    """However fast they were there; slower ones of CPUs like this one are found behind them."""
    store = RecordStore(target_folder(tmp_path, CPU))
    own = vector_bits(tvm_target(CPU))
    # The one like this machine's comes last.
    for bits, cpu in sorted({128: "x86-64", 256: "haswell", 512: "skylake-avx512"}.items(), key=lambda p: p[0] == own):
        assert seconds_of(Lookup([tmp_path], CPU), 4) is None
        target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
        made = record(product(4), 2.0 if bits == own else 1.0, target=target)
        store.commit(made.workload.mod, made, provenance())
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [2.0]


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


def test_an_index_made_in_steps_is_the_one_made_at_once(tmp_path: Path) -> None:
    """Though it then compares with what it held, and knows the devices of records that it has not read yet."""
    generator = random.Random(0)
    folder = target_folder(tmp_path, CPU)
    store = RecordStore(folder)
    late = record(product(4), 0.5)
    with store.changing():
        line = record_line(store.workload_index(late.workload.mod), late.as_json())
        store.append(line, provenance("a late one"))
        (folder / RECORDS).write_text("")
    for _ in range(12):
        commit(store, product(generator.choice([4, 8])), generator.random(), device=generator.choice(["one", "two"]))
        Index(folder)
    with store.changing():
        store.append(line, None)
    in_steps = [Index(folder).best(place) for place in (0, 1)]
    (folder / FILE).unlink()
    assert [Index(folder).best(place) for place in (0, 1)] == in_steps
    assert "a late one" in {entry.device for entry in in_steps[0]}


@pytest.mark.daily(1)
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


def test_the_default_rules_time_is_found_however_many_are_faster(tmp_path: Path) -> None:
    """So that compilations know what a schedule gains; of the others only the few best are."""
    store = RecordStore(target_folder(tmp_path, CPU))
    for seconds in range(1, 6):
        commit(store, product(4), float(seconds))
    commit_default(store, 4, 9.0)
    assert seconds_of(Lookup([tmp_path], CPU), 4) == [1.0, 2.0, 3.0, 9.0]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.speed
def test_many_records_load_and_are_found_fast(tmp_path: Path) -> None:
    """100,000 of 100 functions: read in 1.5 times what parsing all lines takes, opened with an index in a tenth of it.

    A function is looked up, known or unknown, in 1.25 times what writing it as JSON takes. On two idle cores that was
    5 s, 0.2 s and 1 ms, where it took 2 s, 2 ms and 0.9 ms.
    """
    folder = target_folder(tmp_path, CPU)
    store = RecordStore(folder)
    functions = [product(rows) for rows in range(4, 104)]
    made = [record(function, 1.0) for function in functions]
    with store.changing():
        lines = [record_line(store.workload_index(each.workload.mod), each.as_json()) for each in made]
    with (folder / "database_tuning_record.json").open("w") as file:
        for line in lines:
            file.writelines(line.replace("1.5", str(1.5 + number)) + "\n" for number in range(1000))
    lookups: list[Lookup] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = _seconds(lambda: lookups.append(Lookup([tmp_path], CPU)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e6  # KiB
    opened = min(_seconds(lambda: lookups.append(Lookup([tmp_path], CPU))) for _ in range(3))
    assert lookups[-1].find(product(4)) is not None  # the first loads what TVM needs
    wanted = [*functions[:20], *(product(rows, "exp") for rows in range(200, 220))]
    assert [lookups[-1].find(each) is not None for each in wanted] == [True] * 20 + [False] * 20
    parsed = _seconds(lambda: [json.loads(line) for line in (folder / "database_tuning_record.json").open()])
    ratios = [
        _seconds(lambda: [lookups[-1].find(each) for each in wanted])
        / _seconds(lambda: [tvm.ir.save_json(each) for each in wanted])
        for _ in range(3)
    ]
    assert read < 1.5 * parsed and opened < read / 10 and min(ratios) < 1.25, (read, parsed, opened, ratios)
    assert os.path.getsize(folder / FILE) < os.path.getsize(folder / "database_tuning_record.json")
