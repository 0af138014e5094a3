"""Merging as sets do, pruning to the best, verifying, and the commands for these as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.command_line import tkc
from tests.database.samples import CPU, commit, commit_default, product, provenance, record, seconds_in
from tkc.schedules.database import Lookup, RecordStore, target_folder
from tkc.schedules.database.maintenance import export, merge, prune, summaries, verify

Entries = list[tuple[int, int]]
entries = st.lists(st.tuples(st.sampled_from([4, 8]), st.integers(1, 5)), max_size=4)


def filled(folder: Path, content: Iterable[tuple[int, int]]) -> RecordStore:
    """A store with a record of ``seconds`` for each ``(rows, seconds)``."""
    store = RecordStore(folder)
    for n, seconds in content:
        commit(store, product(n), float(seconds))
    return store


def content_of(store: RecordStore) -> set[str]:
    """What is in a store, whatever the order of its workloads."""
    workloads = store.workloads()
    return {
        json.dumps([str(workloads[found.workload].mod.script()), found.content])  # type: ignore[union-attr]
        for found in store.stored()
    }


@pytest.mark.daily(1)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=entries, b=entries, c=entries)
def test_merging_is_a_union(tmp_path_factory: object, a: Entries, b: Entries, c: Entries) -> None:
    """In any order, in any grouping, once or twice."""
    root: Path = tmp_path_factory.mktemp("merge")  # type: ignore[attr-defined]
    first, second, third = (filled(root / name, content) for name, content in zip("abc", (a, b, c), strict=True))
    at_once, reversed_, stepwise = (RecordStore(root / name) for name in ("at_once", "reversed", "stepwise"))
    merge([first, second, third], at_once)
    merge([third, second, first], reversed_)
    merge([second, third], stepwise)
    merge([first], stepwise)
    expected = content_of(first) | content_of(second) | content_of(third)
    assert content_of(at_once) == content_of(reversed_) == content_of(stepwise) == expected
    assert merge([first, second, third], at_once) == 0
    assert len(list(at_once.stored())) == len(expected)
    assert all(found.identity in at_once.provenance() for found in at_once.stored())


def test_pruning_keeps_the_best_and_the_failures(tmp_path: Path) -> None:
    """Of each function, arguments and device; failures go only if asked for."""
    store = filled(tmp_path, [(4, 3), (4, 1), (4, 2), (8, 9)])
    commit(store, product(4), 0.5, device="another")
    commit(store, product(4), 1e10)
    assert prune(store, 1, failures=False) == 2
    assert seconds_in(RecordStore(tmp_path)) == [0.5, 1.0, 9.0]
    assert len(list(RecordStore(tmp_path).stored())) == 4
    assert prune(store, 1, failures=True) == 1
    assert len(list(RecordStore(tmp_path).stored())) == 3
    assert len(RecordStore(tmp_path).provenance()) == 3


def test_verifying_finds_what_no_longer_applies(tmp_path: Path) -> None:
    """A schedule for a block that the function has not, and one measured for another kind of device."""
    store = filled(tmp_path / "cpu", [(4, 1)])
    line = (tmp_path / "cpu" / "database_tuning_record.json").read_text()
    with (tmp_path / "cpu" / "database_tuning_record.json").open("a") as file:
        file.write(line.replace('"product"', '"gone"'))
        file.write(line.replace('"kind": "llvm"', '"kind": "cuda"'))
    reasons = [problem.reason for problem in verify(store, CPU)]
    assert len(reasons) == 2 and "no longer applies" in reasons[0] and "measured for cuda" in reasons[1]


def test_an_export_holds_the_best_alone(tmp_path: Path) -> None:
    """And a compilation finds them there."""
    filled(target_folder(tmp_path / "own", CPU), [(4, 3), (4, 1), (8, 2)])
    assert export(tmp_path / "own", tmp_path / "out", 1) == 2
    found = Lookup([tmp_path / "out"], CPU).find(product(4))
    assert found is not None and [min(map(float, r.run_secs)) for r in found.records] == [1.0]


def test_pruning_keeps_what_the_default_rules_take(tmp_path: Path) -> None:
    """Beside the best, however slow it is."""
    store = filled(tmp_path, [(4, 3), (4, 1), (4, 2)])
    commit_default(store, 4, 9.0)
    assert prune(store, 1, failures=True) == 2
    assert seconds_in(store) == [1.0, 9.0]


def test_an_export_leaves_out_what_gains_little(tmp_path: Path) -> None:
    """Functions that no schedule makes faster than the default rules by the given part."""
    store = filled(target_folder(tmp_path / "own", CPU), [(4, 10), (8, 10)])
    commit_default(store, 4, 11.0)
    commit_default(store, 8, 10.2)
    assert export(tmp_path / "own", tmp_path / "out", 1, least_gain=0.05) == 2
    lookup = Lookup([tmp_path / "out"], CPU)
    assert lookup.find(product(4)) is not None and lookup.find(product(8)) is None


def test_summaries_show_where_the_time_goes(tmp_path: Path) -> None:
    """The slowest first, with counts and devices."""
    store = filled(tmp_path, [(4, 1), (8, 5), (4, 2)])
    made = record(product(4), 1e10)
    store.commit(made.workload.mod, made, provenance(error="it hung"))
    first, second = summaries(store)
    assert (first.best_seconds, second.best_seconds) == (7.5, 1.5)
    assert (second.records, second.failed, second.devices) == (3, 1, ("a test machine",))


def db(*arguments: str | Path, code: int = 0) -> str:
    """Run ``tkc db``; its output."""
    done = tkc("db", *arguments, code=code)
    return done.stdout + done.stderr


def test_the_commands(tmp_path: Path) -> None:
    """Each on a database with something in it, as JSON and as a table, and on a folder that is none."""
    own, other = tmp_path / "own", tmp_path / "other"
    filled(target_folder(own, CPU), [(4, 3), (4, 1)])
    filled(target_folder(other, CPU), [(8, 2)])
    (listed,) = json.loads(db("ls", own, "--json"))["cpu"]
    assert listed["records"] == 2
    shown = json.loads(db("show", own, listed["key"][:6], "--json"))
    assert [entry["measured on"] for entry in shown["records"]] == ["a test machine"] * 2
    assert {entry["arguments"] for entry in shown["records"]} == {"float32 4×16, float32 16×4, float32 4×4"}
    told = db("show", own, listed["key"][:6])
    assert "least (µs)" in told and shown["records"][0]["least (µs)"] in told
    assert json.loads(db("merge", other, "--into", own, "--json")) == {"cpu": 1}
    assert json.loads(db("stats", own, "--json"))[0]["records"] == 3
    assert json.loads(db("prune", own, "--keep", "1", "--json")) == {"cpu": 1}
    assert "no longer" not in db("verify", own)
    assert json.loads(db("export", own, tmp_path / "out", "--json"))["records"] == 2
    assert "is there already" in db("export", own, tmp_path / "out", code=2)
    assert "no tuning records" in db("ls", tmp_path, code=2)
    assert "no tuning database folder" in db("stats", tmp_path / "nowhere", code=2)
    assert "no function" in db("show", own, "zzz", code=2)
    with (target_folder(own, CPU) / "database_tuning_record.json").open("a") as file:
        file.write("garbage\n")
    assert "no record" in db("verify", own, code=1)
