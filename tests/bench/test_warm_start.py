"""The benchmark of first calls: what a row holds of contenders, each in a process of its own, and what one came to."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command_line import tkc
from tkc.bench import first_call, warm_start
from tkc.bench.first_call import Call, FirstCall
from tkc.bench.import_time import timed_imports
from tkc.bench.language_models import LANGUAGE_MODELS
from tkc.bench.models import MODELS
from tkc.bench.small_models import SMALL_MODELS
from tkc.bench.warm_start import SIZES, bench_warm_start
from tkc.measure.record import Record

CPU = torch.device("cpu")
SMALL = Call("bert-large", True, 1, 2, 8, "cpu", "float32", "tkc")


def in_process(monkeypatch: pytest.MonkeyPatch, **results: FirstCall | str) -> list[tuple[str, Path]]:
    """Have contenders come to ``results``; returns who was asked, in which folder of caches."""
    asked: list[tuple[str, Path]] = []

    def process(call: Call, caches: Path, limit: float | None) -> FirstCall | str:
        asked.append((call.contender, caches))
        return results[call.contender.replace("-", "_")]

    monkeypatch.setattr(warm_start, "_in_its_process", process)
    return asked


def test_rows_compare_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both processes all contenders are called, each with caches of its own, which the second process finds."""
    asked = in_process(
        monkeypatch,
        tkc=FirstCall(4.0, 1.0, 1e-3, 2, ["a forward graph runs in PyTorch"]),
        compile=FirstCall(8.0, 2.0, 2e-3, 1, []),
        max_autotune=FirstCall(40.0, 2.0, 2e-3, 1, []),
    )
    first, second = bench_warm_start(["llama"], 3, CPU, torch.float32, ["compile", "max-autotune"])
    assert first.name == "llama, 3 layers, 1 × 2,048 tokens, first process" and second.name.endswith("second process")
    assert [name for name, _ in asked] == ["tkc", "compile", "max-autotune"] * 2
    assert asked[:3] == asked[3:] and len({folder for _, folder in asked}) == 3
    assert first.milliseconds == {"tkc": 4e3, "compile": 8e3, "max-autotune": 40e3}
    assert first.ratio == 2.0 and first.error == 1e-3
    assert first.notes["tkc / compile"] == 0.5 and first.notes["tkc / max-autotune"] == 0.1
    assert first.notes["tkc imports s"] == 1.0 and first.notes["tkc without imports s"] == 3.0
    assert first.notes["tkc warned"] == "a forward graph runs in PyTorch" and "compile warned" not in first.notes


def test_who_fails_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference is left out; without TKC there are no figures, but notes."""
    in_process(monkeypatch, tkc=FirstCall(4.0, 1.0, 0.0, 1, []), compile="not done after 9 s")
    row = next(bench_warm_start(["vit"], 4, CPU, torch.float32, ["compile"]))
    assert (
        row.milliseconds == {"tkc": 4e3} and row.ratio is None and row.notes["compile failed"] == "not done after 9 s"
    )
    in_process(monkeypatch, tkc="ValueError: no", compile=FirstCall(8.0, 2.0, 0.0, 1, []))
    row = next(bench_warm_start(["vit"], 4, CPU, torch.float32, ["compile"]))
    assert not row.milliseconds and row.ours is None and row.notes["tkc failed"] == "ValueError: no"
    assert row.notes["compile s"] == 8.0


def test_unknown_names_are_refused() -> None:
    """Before a process is started."""
    refused = tkc("bench", "warm-start", "--models", "llama,lama", "--target", "cpu", code=2)
    assert "there is no model lama to start; choose from llama, qwen3-moe, bert, vit, generate" in refused.stderr
    refused = tkc("bench", "warm-start", "--reference", "eager", "--target", "cpu", code=2)
    assert "eager compiles nothing; choose references from compile, max-autotune" in refused.stderr
    assert all(size.model in {*MODELS} & {*SMALL_MODELS} or size.model in LANGUAGE_MODELS for size in SIZES.values())


def test_a_process_has_the_caches_of_its_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says why it failed, or is ended where it takes too long."""
    program = """
import json, os, sys, time
call = json.loads(sys.argv[-1])
if call["layers"] == 2: raise ValueError("no such layer")
if call["layers"] == 3: time.sleep(60)
folders = [os.environ[name] for name in ("TKC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
print("something else")
print(json.dumps({"seconds": 1.0, "imports": 0.5, "error": 0.0, "graphs": 1, "warned": folders}))
"""
    popen = subprocess.Popen

    def started(command: list[str], **options: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "tkc.bench.first_call"]
        return popen([sys.executable, "-c", program, command[3]], **options)

    monkeypatch.setattr(warm_start.subprocess, "Popen", started)
    found = warm_start._in_its_process(SMALL, tmp_path, None)
    assert isinstance(found, FirstCall)
    assert found.warned == [
        str(tmp_path / name) for name in ("TKC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    ]
    failing = dataclasses.replace(SMALL, layers=2)
    assert warm_start._in_its_process(failing, tmp_path, None) == "ValueError: no such layer"
    start = time.monotonic()
    slow = dataclasses.replace(SMALL, layers=3)
    assert warm_start._in_its_process(slow, tmp_path, 0.5) == "not done after 0.5 s"
    assert time.monotonic() - start < 20


def test_a_first_call_is_timed_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """To float32's precision; by TKC, and by a compiler that is wrong, which is seen in the error."""
    found = first_call.first_call(SMALL)
    assert 0 <= found.imports < found.seconds and found.error < 1e-5 and found.warned == []

    def wrong(model: torch.nn.Module, dynamic: bool | None) -> Any:
        def call(**inputs: Any) -> list[torch.Tensor]:
            torch._dynamo.utils.counters.clear()
            return [2 * model(**inputs)[0]]

        return call

    monkeypatch.setitem(first_call.CONTENDERS, "tkc", wrong)
    found = first_call.first_call(SMALL)
    assert found.error == pytest.approx(1.0, abs=1e-5) and found.graphs == 0


@pytest.mark.parametrize(("wrong", "error"), [(0, 0.0), (1, 0.25)], ids=["right", "wrong"])
def test_a_first_generation_is_one_of_a_whole_model(monkeypatch: pytest.MonkeyPatch, wrong: int, error: float) -> None:
    """By transformers' ``generate``; the error is the share of new tokens that are others."""
    from tkc.bench import generation

    eager = generation.CONTENDERS["eager"]

    def contender(asked: generation.Asked) -> Any:
        def generate(ids: torch.Tensor, stream: Any = None) -> torch.Tensor:
            found = eager(asked)(ids)
            found[:, -1] += wrong
            return found

        return generate

    monkeypatch.setitem(generation.CONTENDERS, "compile", contender)
    call = Call("llama-3.1-8b", True, 1, 2, 8, "cpu", "float32", "compile")
    found = first_call.first_call(call)
    assert found.error == error and found.seconds > 0
    with pytest.raises(KeyError):
        first_call.first_call(dataclasses.replace(call, contender="nobody"))


def test_what_tkc_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that runs in PyTorch in place of TKC would be a figure of PyTorch's."""
    from tkc.dynamo import backend
    from tkc.errors import UnsupportedModelError

    def refused(*_: object, **__: object) -> None:
        raise UnsupportedModelError("no converter of this")

    torch.compiler.reset()
    monkeypatch.setattr(backend, "graph_program", refused)
    found = first_call.first_call(SMALL)
    assert found.warned == ["a forward graph runs in PyTorch, and is not compiled: no converter of this"]


def test_imports_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, with what they import; what is loaded takes nothing, and the import system is left as it was."""
    (tmp_path / "slow_inner_module.py").write_text("import time; time.sleep(0.1)")
    (tmp_path / "slow_outer_module.py").write_text("import time, slow_inner_module; time.sleep(0.1)")
    monkeypatch.syspath_prepend(tmp_path)
    find = importlib._bootstrap._find_and_load  # type: ignore[attr-defined]
    with timed_imports() as imports:
        importlib.import_module("slow_outer_module")
    assert 0.2 <= imports.seconds < 0.4
    with timed_imports() as again, pytest.raises(ModuleNotFoundError):
        importlib.import_module("slow_outer_module")
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert again.seconds < 0.1
    assert importlib._bootstrap._find_and_load is find  # type: ignore[attr-defined]


def test_a_record_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, with a row for each process; ``tkc bench show`` shows it again."""
    in_process(monkeypatch, tkc=FirstCall(12.5, 1.0, 0.0, 1, []), compile=FirstCall(25.0, 2.0, 0.0, 1, []))
    tkc("bench", "warm-start", "--models", "bert, vit", "--small", "--target", "cpu", "-o", tmp_path / "warm.json")
    found = Record.read(tmp_path / "warm.json")
    assert [row.name for row in found.rows] == [
        f"small {name}, 4 layers, 2 {what}, {state} process"
        for name, what in (("bert", "× 64 tokens"), ("vit", "images"))
        for state in ("first", "second")
    ]
    shown = tkc("bench", "show", tmp_path / "warm.json").stdout
    assert "12,500" in shown and "25,000" in shown and "2.00" in shown
