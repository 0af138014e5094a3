"""What the cache holds: listed, pruned, limited, beside processes that use it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn
from typer.testing import CliRunner

import tkc
from tkc.builder import stored
from tkc.cli.app import app

DAY = 86400.0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of entries of every kind, and of what is none."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TKC_CACHE_DIR", str(folder))
    for age, kind, letter in ((1, "kernels", "a"), (3, "kernels", "b"), (40, "kernels", "c"), (2, "graphs", "d")):
        entry = folder / kind / (letter * 2) / (letter * 64)
        entry.mkdir(parents=True)
        (entry / ("matmul.so" if kind == "kernels" else "model.so")).write_bytes(bytes(1000))
        aged(entry, age)
    (folder / "launch").mkdir()
    (folder / "launch" / f"{'e' * 32}.o").write_bytes(bytes(10))
    aged(folder / "launch" / f"{'e' * 32}.o", 50)
    for age, name in ((0, "building-x1y2"), (2, "storing-x1y2")):
        (folder / "kernels" / name).mkdir()
        (folder / "kernels" / name / "half.so").write_bytes(bytes(5))
        aged(folder / "kernels" / name, age)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (folder / "kernels" / "ff").mkdir()
    (folder / "kernels" / "ff" / ("f" * 64)).symlink_to(outside)
    (folder / "kernels" / "aa" / "notes.txt").write_text("mine")
    (folder / "kernels" / "aa" / ("b" * 64)).mkdir()
    (folder / "other").mkdir()
    (folder / "other" / f"{'e' * 32}.o").write_text("mine")
    return folder


def aged(path: Path, days: float) -> None:
    """Have an entry be used so many days ago."""
    os.utime(path, (time.time() - days * DAY,) * 2)


def told(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, ["cache", *arguments, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


def names(found: dict[str, Any]) -> set[str]:
    """The entries by kind and the letter of their keys."""
    return {f"{entry['kind']} {Path(entry['path']).name[:2]}" for entry in found["entries"]}


EVERYTHING = {"kernels aa", "kernels bb", "kernels cc", "graphs dd", "objects ee", "unfinished bu", "unfinished st"}
MINE = ("kernels/ff", "kernels/aa/notes.txt", "kernels/aa/" + "b" * 64, "other/" + "e" * 32 + ".o")


def test_all_entries_are_listed_and_nothing_else(cache: Path) -> None:
    """Sizes, kinds, times, the total; as tables, too."""
    found = told("ls")
    assert names(found) == EVERYTHING and found["bytes"] == 4020 and found["limit"] is None
    assert found["kinds"]["kernels"]["entries"] == 3 and found["kinds"]["kernels"]["bytes"] == 3000
    assert names(told("ls", "--kind", "graphs", "--kind", "objects")) == {"graphs dd", "objects ee"}
    for options in ([], ["--entries"]):
        text = CliRunner().invoke(app, ["cache", "ls", *options], catch_exceptions=False).stdout
        assert "kernels" in text and "4.0 kB" in text and str(cache) in text and "no limit" in text
    assert "matmul" in text and "40 d ago" in text


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ((), EVERYTHING - {"unfinished bu"}),
        (("--older-than", "30d"), {"kernels cc", "objects ee"}),
        (("--older-than", "36h", "--kind", "kernels"), {"kernels bb", "kernels cc"}),
        (("--kind", "graphs"), {"graphs dd"}),
    ],
)
def test_pruning(cache: Path, options: tuple[str, ...], gone: set[str]) -> None:
    """What is named goes, also when only said; what is being built stays, and so does what is no entry."""
    named = gone | ({"unfinished bu"} if not options else set())
    assert names(told("prune", "--dry-run", *options)) == named and names(told("ls")) == EVERYTHING
    assert names(told("prune", *options)) == gone
    assert names(told("ls")) == EVERYTHING - gone
    assert all(os.path.lexists(cache / path) for path in MINE)
    assert (cache.parent / "outside" / "mine").read_text() == "mine"
    assert not list(cache.rglob("removing-*"))


def test_what_is_in_use_stays(cache: Path) -> None:
    """An entry whose lock is held, or that was used since it was listed."""
    entries = {entry.path.name[:2]: entry for entry in stored.cache_entries()}
    with FileLock(cache / "kernels" / f"{'a' * 32}.lock"):
        assert [entry["path"][-2:] for entry in told("prune", "--kind", "kernels")["in_use"]] == ["aa"]
    assert names(told("ls", "--kind", "kernels")) == {"kernels aa"}
    aged(entries["dd"].path, 0)
    assert not stored.removed(entries["dd"]) and not stored.removed(entries["cc"])
    assert names(told("ls", "--kind", "graphs")) == {"graphs dd"}


def test_a_limit_lasts(cache: Path) -> None:
    """What was used longest ago goes, now and whenever something is written, until the limit is lifted."""
    assert told("limit", "2.9kB")["limit"] == 2900
    assert names(told("ls", "--kind", "kernels", "--kind", "graphs")) == {"kernels aa", "graphs dd"}
    entry = cache / "kernels" / "99" / ("9" * 64)
    entry.mkdir(parents=True)
    (entry / "matmul.so").write_bytes(bytes(1000))
    assert [gone.path.name[:2] for gone in stored.keep_limit([cache / "graphs" / "dd" / ("d" * 64)])] == ["aa"]
    assert [gone.path.name[:2] for gone in stored.keep_limit()] == []
    doctor = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    (told_by_doctor,) = (each["found"] for each in json.loads(doctor.stdout) if each["name"] == "kernel cache")
    assert "1 kernels, 1.0 kB; 1 graphs, 1.0 kB" in told_by_doctor and "limited to 2.9 kB" in told_by_doctor
    assert told("limit", "none")["limit"] is None and stored.keep_limit() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GB", 10**10),
        ("500mb", 5 * 10**8),
        ("2GiB", 2 << 30),
        ("1.5k", 1500),
        ("7", 7),
        ("0", 0),
        ("3 TB", 3 * 10**12),
    ],
)
def test_sizes(cache: Path, text: str, expected: int) -> None:
    """As people write them."""
    assert told("limit", text)["limit"] == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ("limit", "much"),
        ("limit", "10XB"),
        ("limit", "-5"),
        ("prune", "--older-than", "30"),
        ("ls", "--kind", "models"),
    ],
)
def test_what_means_nothing(cache: Path, arguments: tuple[str, ...]) -> None:
    """Is refused, and nothing changes."""
    result = CliRunner().invoke(app, ["cache", *arguments])
    assert isinstance(result.exception, tkc.UsageError) or result.exit_code == 2
    assert names(told("ls")) == EVERYTHING


def test_a_damaged_limit(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is said, and no reason not to compile."""
    (cache / "limit.json").write_text('{"bytes": "all"}')
    with pytest.raises(tkc.CacheError, match="tkc cache limit"):
        CliRunner().invoke(app, ["cache", "ls"], catch_exceptions=False)
    assert stored.keep_limit() == [] and "tkc cache limit" in caplog.text
    assert told("limit", "1GB")["limit"] == 10**9


def test_no_folder_and_a_file_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is listed, and an error names the folder and the setting."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "none"))
    assert told("ls")["entries"] == [] and told("prune")["entries"] == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "file"))
    for command in (["ls"], ["prune"], ["limit", "1GB"]):
        with pytest.raises(tkc.CacheError, match=f"{tmp_path / 'file'}.*TKC_CACHE_DIR"):
            CliRunner().invoke(app, ["cache", *command], catch_exceptions=False)


def test_models_that_were_compiled_need_the_cache_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for their first call nor to be saved; and a limit of nothing keeps nothing."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "cache"))
    stored.write_limit(0)
    model, x = nn.Linear(64, 64).eval(), torch.randn(4, 64)
    executable = tkc.compile(model, (x,), kernels="all")
    assert executable.libraries and not [e for e in stored.cache_entries() if e.kind == "kernels"]
    loaded = tkc.load(executable.save(tmp_path / "a.tkc"))
    torch.testing.assert_close(executable(x), model(x))
    torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.daily(1)
def test_stored_graphs_are_used_and_kept_under_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is read is younger than one that was stored after it."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "cache"))
    compile_: Callable[..., Any] = torch.compile

    def run(number: float) -> None:
        torch._dynamo.reset()
        torch.testing.assert_close(
            compile_(lambda x: x * number, backend="tkc")(torch.ones(3)), torch.full((3,), number)
        )

    run(2.0)
    (first,) = [entry for entry in stored.cache_entries() if entry.kind == "graphs"]
    aged(first.path, 9)
    run(3.0)
    (second,) = [e for e in stored.cache_entries() if e.kind == "graphs" and e.path != first.path]
    aged(second.path, 8)
    run(2.0)
    stored.write_limit(
        first.bytes + second.bytes + 1000 + sum(e.bytes for e in stored.cache_entries() if e.kind == "objects")
    )
    run(4.0)
    kept = {entry.path for entry in stored.cache_entries() if entry.kind == "graphs"}
    assert first.path in kept and second.path not in kept
