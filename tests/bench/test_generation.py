"""The benchmark of generation, on a tiny model: who generates, whether they agree, and what a row holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command_line import tkc
from tkc.bench import generation, language_models
from tkc.bench.generation import CONTENDERS, Asked, _agreement, bench_generation
from tkc.bench.language_models import LANGUAGE_MODELS, generating_program, language_model
from tkc.measure.record import Record

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """As quick to compile as to run."""
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "num_hidden_layers": 1}
    monkeypatch.setattr(language_models, "_SMALL", language_models._SMALL | small)
    monkeypatch.setattr(generation, "_WARM_UP", 1)


def rows(*contenders: str, turns: int = 1) -> list[Any]:
    """Both rows of two sequences of five tokens, with four new ones."""
    return list(
        bench_generation("llama-3.1-8b", contenders, [2], [5], 4, None, CPU, torch.float32, small=True, turns=turns)
    )


def fake(*sleeps: float, tokens: int = 0) -> Any:
    """A contender that takes so many seconds for each token, and adds ``tokens`` to eager's last."""

    def contender(asked: Asked) -> Any:
        def generate(ids: torch.Tensor, stream: Any = None) -> torch.Tensor:
            found = CONTENDERS["eager"](asked)(ids) if tokens else ids
            if stream is not None:
                stream.put(ids)
            for seconds in sleeps:
                time.sleep(seconds)
                if stream is not None:
                    stream.put(found[:, -1])
            found[:, -1] += tokens
            return found

        return generate

    return contender


@pytest.mark.daily(3)
def test_all_give_the_tokens_of_eager() -> None:
    """transformers' own loop and the program's; ours comes first, whatever was asked for first."""
    names = ["eager", "eager-dynamic", "program"]
    whole, first = rows(*names)
    assert whole.name == "small llama-3.1-8b, 1 layers, float32, 2 × 5 tokens, 4 new"
    assert first.name == "small llama-3.1-8b, 1 layers, float32, 2 × 5 tokens, first token"
    assert list(whole.milliseconds) == list(first.milliseconds) == [name for name in CONTENDERS if name in names]
    assert [whole.notes[f"{name} tokens"] for name in names if name != "eager"] == ["as eager"] * 2
    for name, milliseconds in whole.milliseconds.items():
        assert whole.notes[f"{name} tokens/s"] == pytest.approx(8 / milliseconds * 1e3)
        assert whole.notes[f"{name} step ms"] == pytest.approx((milliseconds - first.milliseconds[name]) / 3)
        assert f"{name} first call s" in whole.notes
    fastest = min(whole.milliseconds["eager"], whole.milliseconds["eager-dynamic"])
    assert whole.ratio == pytest.approx(fastest / whole.milliseconds["program"])


@pytest.mark.daily(2)
def test_graphs_are_compiled_by_tkc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill and step, or the step alone, with the tokens of eager; not by what transformers would compile with."""
    from tkc.dynamo import backend

    compiled: list[Any] = []
    compile_graph = backend.compiled_graph

    def counted(*arguments: Any, **options: Any) -> Any:
        compiled.append(arguments)
        return compile_graph(*arguments, **options)

    monkeypatch.setattr(backend, "compiled_graph", counted)
    asked = Asked(language_model("llama-3.1-8b", 1, 16, True, CPU, torch.float32), 1, 5, 4, None)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    expected = CONTENDERS["eager"](asked)(ids)
    assert not compiled
    for name, graphs in (("tkc-decode", 1), ("tkc", 2)):
        torch.compiler.reset()
        compiled.clear()
        assert torch.equal(CONTENDERS[name](asked)(ids), expected) and len(compiled) == graphs, name


def test_times_are_of_the_whole_and_of_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """That can be read; the first of ours counts beside the fastest of the others."""
    monkeypatch.setitem(CONTENDERS, "program", fake(0.05, 0.02, 0.02, 0.02))
    monkeypatch.setitem(CONTENDERS, "compile", fake(0.2, 0.0))
    monkeypatch.setitem(CONTENDERS, "tkc-decode", fake(0.1, 0.0))
    whole, first = rows("program", "compile", "tkc-decode", turns=2)
    assert list(whole.milliseconds) == ["tkc-decode", "program", "compile"]
    assert whole.milliseconds["program"] >= 110 and whole.milliseconds["compile"] >= 200
    assert 50 <= first.milliseconds["program"] < whole.milliseconds["program"]
    assert whole.notes["program tokens"] == "[2, 5] in place of [2, 9]"
    assert whole.ratio == whole.milliseconds["compile"] / whole.ours
    assert first.ratio == first.milliseconds["compile"] / first.ours


def test_other_tokens_and_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tokens differ; a contender that fails ends nothing."""

    def broken(asked: Asked) -> Any:
        raise ValueError("no such cache")

    monkeypatch.setitem(CONTENDERS, "tkc", broken)
    monkeypatch.setitem(CONTENDERS, "compile", fake(0.0, tokens=1))
    whole, first = rows("tkc", "compile", "eager")
    assert whole.notes["tkc failed"] == "ValueError: no such cache" and "tkc" not in whole.milliseconds
    assert whole.notes["compile tokens"] == "differ from number 4 on, sequences: 2 of 2"
    assert whole.ratio is None and first.ratio is None


def test_agreement_is_behind_the_prompt() -> None:
    """Numbers count new tokens, from one; sizes that differ are told."""
    expected = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
    found = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 4]])
    assert _agreement(expected, expected, 2) == "as eager"
    assert _agreement(found, expected, 2) == "differ from number 1 on, sequences: 1 of 2"
    assert _agreement(expected[:, :3], expected, 2) == "[2, 3] in place of [2, 4]"


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_programs_hold_one_cache(name: str) -> None:
    """Of a length; a prompt may have any number of tokens that leaves room. In mixtures of experts, too."""
    model = language_model(name, None, 16, True, CPU, torch.float32)
    program = generating_program(model, 2, 16, "cpu")
    for tokens in (3, 9):
        ids = torch.randint(0, 64, (2, tokens))
        asked = Asked(model, 2, tokens, 6, None)
        assert torch.equal(program.generate(ids, 6), CONTENDERS["eager"](asked)(ids)), tokens


def test_the_command(tmp_path: Path) -> None:
    """Its record holds both rows; what does not exist is refused before anything is measured."""
    for words, reason in (
        (["--model", "lama"], "there is no language model lama; choose one of llama-3.1-8b"),
        (["--contender", "vllm"], "nobody generates as vllm; choose from tkc, tkc-decode, program, eager"),
    ):
        assert reason in tkc("bench", "generation", "--target", "cpu", *words, code=2).stderr
    path = tmp_path / "generation.json"
    options = ["--small", "--target", "cpu", "--contender", "eager", "--new", "2", "--turns", "1", "--batch", "1"]
    tkc("bench", "generation", *options, "--tokens", "4", "--tokens", "6", "-o", path)
    found = Record.read(path)
    assert found.benchmark == "generation llama-3.1-8b" and len(found.rows) == 4
    assert all(row.ratio is None and list(row.milliseconds) == ["eager"] for row in found.rows)
