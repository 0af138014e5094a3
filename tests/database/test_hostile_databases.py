"""Databases made by an enemy: refused by file and line, in bounded memory and time, and nothing of them runs."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import tkc
from tests.database.samples import CPU, commit, product, record
from tkc.databases import kernel_choices
from tkc.errors import UsageError
from tkc.schedules.database import Lookup, RecordStore, target_folder
from tkc.schedules.database import index as index_module
from tkc.schedules.database import store as files
from tkc.schedules.database.untrusted import MOST_LINE, record_problem, workload_problem
from tkc.schedules.tuning.state import StateFile, UnreadableStateError


def _workload() -> list[str]:
    return list(record(product(4), 1.0).workload.as_json())


def _graph(change: Callable[[dict[str, Any]], None]) -> str:
    key, text = _workload()
    graph = json.loads(base64.b64decode(text)[8:])
    change(graph)
    return json.dumps([key, _encoded(json.dumps(graph).encode())])


def _encoded(text: bytes) -> str:
    return base64.b64encode(struct.pack("<Q", len(text)) + text).decode()


def _store_of(graph: dict[str, Any]) -> dict[str, Any]:
    return next(node["data"] for node in graph["nodes"] if node["type"] == "tirx.BufferStore")


def _deeper(graph: dict[str, Any]) -> None:
    stored = _store_of(graph)
    for _ in range(100_000):
        graph["nodes"].append(
            {"type": "tirx.Add", "data": {"span": 0, "a": stored["value"], "b": 1, "dtype": "float32"}}
        )
        stored["value"] = len(graph["nodes"]) - 1


def _deep_and_ordered(graph: dict[str, Any]) -> None:
    value = 1
    for _ in range(100_000):
        graph["nodes"].append({"type": "tirx.Not", "data": {"span": 0, "a": value, "dtype": "bool"}})
        value = len(graph["nodes"]) - 1
    graph["root_index"] = value


def _cyclic(graph: dict[str, Any]) -> None:
    _store_of(graph)["value"] = graph["root_index"]


def _foreign(graph: dict[str, Any]) -> None:
    graph["nodes"].append({"type": "node.Function", "data": {"name": "system"}})


def _without(kind: str, field: str) -> Callable[[dict[str, Any]], None]:
    """A part of the function in whose ``field`` there is nothing."""

    def change(graph: dict[str, Any]) -> None:
        nothing = next(place for place, node in enumerate(graph["nodes"]) if node["type"] == "None")
        next(node["data"] for node in graph["nodes"] if node["type"] == kind)[field] = nothing

    return change


def _of_another_kind(kind: str, field: str) -> Callable[[dict[str, Any]], None]:
    """A part of the function in whose ``field`` there is something that stands earlier and is no statement."""

    def change(graph: dict[str, Any]) -> None:
        other = next(place for place, node in enumerate(graph["nodes"]) if node["type"] == "ffi.Array")
        next(node["data"] for node in graph["nodes"] if node["type"] == kind)[field] = other

    return change


_HELD = (("tirx.SBlock", "body"), ("tirx.SBlockRealize", "block"), ("tirx.For", "body"), ("tirx.PrimFunc", "body"))

WORKLOADS = {
    **{f"without {kind}'s {field}": lambda k=kind, f=field: _graph(_without(k, f)) for kind, field in _HELD},
    "without functions": lambda: _graph(_without("ir.IRModule", "functions")),
    "without names": lambda: _graph(_without("ir.IRModule", "global_var_map_")),
    **{f"{kind}'s {field} an array": lambda k=kind, f=field: _graph(_of_another_kind(k, f)) for kind, field in _HELD},
    "deep": lambda: _graph(_deeper),
    "deep and in order": lambda: _graph(_deep_and_ordered),
    "cyclic": lambda: _graph(_cyclic),
    "foreign": lambda: _graph(_foreign),
    "root": lambda: _graph(lambda graph: graph.update(root_index=1 << 40)),
    "no nodes": lambda: _graph(lambda graph: graph.update(nodes=7)),
    "nested text": lambda: json.dumps(["1", _encoded(b"[" * 1_000_000)]),
    "lying length": lambda: json.dumps(["1", base64.b64encode(struct.pack("<Q", 1 << 62) + b"{}").decode()]),
    "short": lambda: json.dumps(["1", base64.b64encode(b"abc").decode()]),
    "no base64": lambda: json.dumps(["1", "é{}"]),
    "nested line": lambda: "[" * 1_000_000,
    "number": lambda: "1e999",
    "types": lambda: json.dumps([[], {}]),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_workload_that_would_end_the_process_is_refused_by_its_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TVM's parser and visitors recurse; the lines beside it are used."""
    folder = target_folder(tmp_path, CPU)
    store = RecordStore(folder)
    commit(store, product(4), 1.0)
    with (folder / files.WORKLOADS).open("a") as file:
        file.write(WORKLOADS[kind]() + "\n")
    commit(RecordStore(folder), product(8), 2.0)
    assert [(each.file, each.line) for each in RecordStore(folder).problems()] == [(files.WORKLOADS, 2)]
    lookup = Lookup([tmp_path], CPU)
    assert f"{files.WORKLOADS}, line 2" in caplog.text
    assert all(lookup.find(product(rows)) is not None for rows in (4, 8))


def _record_line(change: Callable[[list[Any]], None]) -> str:
    content = json.loads(json.dumps([0, record(product(4), 1.0).as_json()]))
    change(content)
    return json.dumps(content)


def _instruction(*instruction: Any) -> Callable[[list[Any]], None]:
    return lambda content: content[1][0][0].append(list(instruction))


def _put(place: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda content: content[1].__setitem__(place, value)


RECORDS = {
    "foreign code": _instruction("Annotate", ["b0", '"void f() {}"'], ["pragma_import_c"], []),
    "foreign LLVM": _instruction("Annotate", ["b0", '"; ModuleID"'], ["pragma_import_llvm"], []),
    "foreign primitive": _instruction("UnsafeSetDType", ["b0"], [0, "int8"], []),
    "no primitive": _instruction("os.system", [], ["true"], []),
    "nested map": _instruction("TransformLayout", ["b0"], [0, 0, _encoded(b"[" * 1_000_000), None, True], []),
    "nested text": _instruction("TransformLayout", ["b0"], [0, 0, "[" * 1_000_000, None, True], []),
    "instructions": _put(0, [7, []]),
    "no schedule": _put(0, None),
    "times": _put(1, ["fast"]),
    "no number": _put(1, [float("nan")]),
    "negative": _put(1, [-1.0]),
    "many times": _put(1, [1.0] * 100_000),
    "target": _put(2, {"kind": ["llvm"]}),
    "vectors": _put(2, {"kind": "llvm", "mcpu": {"a": 1}}),
    "arguments": _put(3, [["TENSOR", "float32", "x"]]),
    "sizes": _put(3, [["TENSOR", "float32", [1 << 70]]]),
    "place": lambda content: content.__setitem__(0, 1 << 70),
    "boolean": lambda content: content.__setitem__(0, True),
    "more": lambda content: content.append(1),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_none_is_refused_by_its_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it names is neither looked up nor called; the lines beside it are used."""
    folder = target_folder(tmp_path, CPU)
    commit(RecordStore(folder), product(4), 1.0)
    with (folder / files.RECORDS).open("a") as file:
        file.write(_record_line(RECORDS[kind]) + "\n")
    commit(RecordStore(folder), product(4), 2.0, tile=2)
    assert [(each.file, each.line) for each in RecordStore(folder).problems()] == [(files.RECORDS, 2)]
    found = Lookup([tmp_path], CPU).find(product(4))
    assert f"{files.RECORDS}, line 2" in caplog.text
    assert found is not None and [min(each.run_seconds) for each in found.stored] == [1.0, 2.0]


@pytest.mark.parametrize(
    "line", ["[]", "7", '{"record": 1, "device": 2}', '{"record": "x", "device": "d"}', "[" * 10**6]
)
def test_a_provenance_that_is_none(line: str, tmp_path: Path) -> None:
    """It is named, and the others are known."""
    folder = target_folder(tmp_path, CPU)
    commit(RecordStore(folder), product(4), 1.0, device="known")
    with (folder / files.PROVENANCE).open("a") as file:
        file.write(line + "\n")
    store = RecordStore(folder)
    assert [(each.file, each.line) for each in store.problems()] == [(files.PROVENANCE, 2)]
    assert [each.device for each in store.provenance().values()] == ["known"]
    assert Lookup([tmp_path], CPU).find(product(4)) is not None


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [files.WORKLOADS, files.RECORDS, files.PROVENANCE])
def test_a_line_without_an_end_takes_no_memory(name: str, tmp_path: Path) -> None:
    """Some lines' worth of zeros, which a sparse file has for nothing, without an end and with one."""
    folder = target_folder(tmp_path, CPU)
    commit(RecordStore(folder), product(4), 1.0)
    assert Lookup([tmp_path], CPU).find(product(4)) is not None
    for end in (b"", b"\n"):
        with (folder / name).open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.truncate(file.tell() + 12 * MOST_LINE)
            file.seek(0, os.SEEK_END)
            file.write(end)
        tracemalloc.start()
        assert Lookup([tmp_path], CPU).find(product(4)) is not None
        RecordStore(folder).problems()
        assert tracemalloc.get_traced_memory()[1] < 6 * MOST_LINE  # of the file's 12
        tracemalloc.stop()


def test_what_is_read_is_what_was_checked() -> None:
    """A sound line passes; the checks themselves do not recurse."""
    assert workload_problem(_workload()) is None
    assert record_problem(json.loads(_record_line(lambda _: None))) is None
    start = time.process_time()
    assert "nested" in str(workload_problem(json.loads(_graph(_deep_and_ordered))))
    assert time.process_time() - start < 10


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Neither a record nor the index is written through one, and no other database loses its tables."""
    victim = tmp_path / "victim.sqlite"
    with sqlite3.connect(victim) as database:
        database.execute("CREATE TABLE dear (value TEXT)")
    before = victim.read_bytes()
    folder = target_folder(tmp_path / "db", CPU)
    commit(RecordStore(folder), product(4), 1.0)
    (folder / index_module.FILE).symlink_to(victim)
    assert Lookup([tmp_path / "db"], CPU).find(product(4)) is not None
    with pytest.raises(OSError, match="link"):
        commit(RecordStore(folder), product(4), 2.0, tile=2)
    assert victim.read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / folder.name).symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        commit(RecordStore(tmp_path / "other" / folder.name), product(4), 2.0)
    assert not (tmp_path / files.RECORDS).exists()


def test_an_index_that_came_along_is_not_believed(tmp_path: Path) -> None:
    """A view of it could run for ever; one that lies about places gives no records."""
    folder = target_folder(tmp_path, CPU)
    commit(RecordStore(folder), product(4), 1.0)
    with sqlite3.connect(folder / index_module.FILE) as database:
        database.execute(
            "CREATE VIEW read AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT i, i, i, i, i FROM n"
        )
    assert Lookup([tmp_path], CPU).find(product(4)) is not None
    with sqlite3.connect(folder / index_module.FILE) as database:
        database.execute("UPDATE record SET start = -5, length = 1 << 60")
        database.execute("UPDATE workload SET start = start + 1")
    assert Lookup([tmp_path], CPU).find(product(4)) is None


@pytest.mark.parametrize("text", ["[" * 10**6, '{"format": 1, "records": [[]]}', '{"format": "x"}', "\0" * 100, "{}"])
def test_kernel_records_that_are_none(text: str, tmp_path: Path) -> None:
    """The message names the file."""
    folder = target_folder(tmp_path, CPU)
    folder.mkdir(parents=True)
    (folder / "kernels.json").write_text(text)
    with pytest.raises(UsageError, match=r"kernels\.json"):
        kernel_choices(tmp_path, CPU)


def test_kernel_records_take_bounded_memory(tmp_path: Path) -> None:
    """A file of 4 GB is refused before it is read."""
    folder = target_folder(tmp_path, CPU)
    folder.mkdir(parents=True)
    with (folder / "kernels.json").open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(UsageError, match=r"kernels\.json"):
        kernel_choices(tmp_path, CPU)


@pytest.mark.parametrize(
    "text", ["[" * 10**6, "7", '{"curve": [], "trials": {"a": "x"}}', '{"curve": [{"trials": "x", "gain": []}]}', "{}x"]
)
def test_a_job_s_state_that_is_none(text: str, tmp_path: Path) -> None:
    """The message names the file; its name comes from a hash, whatever the tasks are called."""
    file = StateFile(tmp_path, ["../../outside", "/etc/passwd"])
    assert file.path.parent == tmp_path
    file.path.write_text(text)
    with pytest.raises(UnreadableStateError, match=file.path.name):
        file.load()
    file.close()


@pytest.mark.daily(1)
def test_the_commands_survive_all_of_it(tmp_path: Path) -> None:
    """``tkc db verify`` lists every line of one database with all of the above in it."""
    folder = target_folder(tmp_path, CPU)
    commit(RecordStore(folder), product(4), 1.0)
    with (folder / files.WORKLOADS).open("a") as file:
        file.writelines(make() + "\n" for make in WORKLOADS.values())
    with (folder / files.RECORDS).open("a") as file:
        file.writelines(_record_line(change) + "\n" for change in RECORDS.values())
    done = tkc("db", "verify", tmp_path, "--json", code=1)
    assert len(json.loads(done.stdout)) == len(WORKLOADS) + len(RECORDS)
