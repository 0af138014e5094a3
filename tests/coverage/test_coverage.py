"""The harness calls a wrong result wrong and a crash a crash, and resumes; a day's models are right."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tkc
from tests.conformance.pool import Job, Limits
from tests.conformance.results import ROOT, append

from . import record, results, run, verdicts
from .reference import Reference
from .results import Result
from .shrink import shrunk
from .sources import Example, NotConstructibleError, exported
from .transformers_models import Transformers
from .verdicts import Case, Verdict, verdict

pytest.importorskip("transformers")


class Failing:
    """A source whose cases fail in the way that each is named after."""

    def names(self) -> list[str]:
        """The ways."""
        return ["crash", "hang", "none", "right"]

    def variants(self, name: str) -> tuple[str, ...]:
        """Two, the second of which is right."""
        return ("base", "prefill")

    def make(self, name: str, variant: str) -> Example:
        """Fails, or a linear layer."""
        if variant == "base":
            if name == "crash":
                os.abort()
            if name == "hang":
                while True:
                    pass
            if name == "none":
                raise NotConstructibleError("there is none")
        return Example(nn.Linear(4, 3).eval(), (torch.randn(2, 4),))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only source."""
    monkeypatch.setattr(verdicts, "sources", lambda: {"failing": Failing()})


class _Exe:
    """What stands for an executable, and returns ``result``."""

    def __init__(self, result: Any) -> None:
        self.result, self.report = result, tkc.Report("cpu", "auto")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.result


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_a_wrong_result_is_wrong(failing: None, monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    """Also where one element of many is off."""
    torch.manual_seed(0)
    example = Failing().make("right", "base")
    with torch.no_grad():
        result = example.module(*example.args)
    monkeypatch.setattr(tkc, "compile", lambda program, target: _Exe(result.clone()), raising=False)
    assert verdict(Case("failing", "right"), 0, "base").kind == "right"
    result[1, 2] += error
    found = verdict(Case("failing", "right"), 0, "base")
    assert (found.kind, "1 of 6 differ" in found.reason) == ("wrong", True)


@pytest.mark.parametrize("error, kind", [(tkc.UnsupportedModelError, "refused"), (KeyError, "internal")])
def test_what_the_compiler_raises(failing: None, monkeypatch: pytest.MonkeyPatch, error: Any, kind: str) -> None:
    """TKC's own errors are refusals, others are not."""

    def failed(program: Any, target: str) -> None:
        raise error("because")

    monkeypatch.setattr(tkc, "compile", failed, raising=False)
    found = verdict(Case("failing", "right"), 0, "base")
    assert found.kind == kind and "because" in found.reason


def test_an_export_that_differs_is_no_fault_of_the_compiler() -> None:
    """PyTorch's own run of the exported program decides."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if torch.compiler.is_exporting() else x

    args = (torch.randn(3),)
    program = exported(Model(), args, {})
    kind, reason = verdicts.compared(Reference(Model(), args, {}), program, args[0] + 1, args, {})
    assert kind == "not exportable" and "3 of 3 differ" in reason


def test_a_model_that_overflows_in_float64_is_measured_in_float32() -> None:
    """Canine masks with a float32 tensor times the least number of the scores' dtype."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            return self.outer(torch.softmax(x + (1 - mask.float()) * torch.finfo(x.dtype).min, -1).matmul(x))

    torch.manual_seed(0)
    model, x, mask = Model(), torch.randn(64, 64), torch.ones(64, dtype=torch.long)
    reference = Reference(model, (x, mask), {})
    order = torch.randperm(64)  # the same sums in another order: rounding alone
    with torch.no_grad():
        hidden = torch.softmax(model.inner(x), -1).matmul(model.inner(x))
        result = torch.nn.functional.linear(hidden[:, order], model.outer.weight[:, order], model.outer.bias)
    assert not torch.equal(result, reference.eager[0])
    assert reference.difference(result) is None
    result[1, 2] += 1e-4
    assert "1 of 4096 differ" in str(reference.difference(result))


@pytest.mark.daily(3)
def test_a_process_that_dies_or_hangs(failing: None) -> None:
    """Is told from others, and the variants after it are judged."""
    chosen = [Case("failing", name) for name in Failing().names()]
    found = {each.case.name: each for each in run.run(chosen, limits=Limits(seconds=20, patience=4))}
    kinds = {name: [verdict.kind for verdict in each.verdicts] for name, each in found.items()}
    assert kinds == {
        "crash": ["crash", "right"],
        "hang": ["hang", "right"],
        "none": ["not constructible", "right"],
        "right": ["right", "right"],
    }
    assert "SIGABRT" in found["crash"].verdicts[0].reason


def test_every_item_of_a_job_that_names_some(failing: None) -> None:
    """The others are left."""

    class Silent:
        def all(self, items: Any) -> None: ...

        def begin(self, items: Any) -> None: ...

    found = list(verdicts.judge(Job(Case("failing", "none"), (0,)), Silent()))  # type: ignore[arg-type]
    assert [(index, each.kind) for index, each in found] == [(0, "not constructible")]


def test_results_are_read_as_written(tmp_path: Path) -> None:
    """The last line of a case counts."""
    path = tmp_path / "models.jsonl"
    case = Case("torch", "Linear")
    right = Verdict(0, "base", "right", "", ("matmul.dense",), ("aten::sort (2)",))
    for verdicts_of in ((Verdict(0, "base", "wrong", "1 of 2 differ"),), (right,)):
        append(path, Result(case, "0", 1.0, verdicts_of))
    assert results.read(path) == {case: Result(case, "0", 1.0, (right,))}
    assert results.read(tmp_path / "none") == {}


@pytest.mark.daily(3)
def test_resume_leaves_out_what_is_done(tmp_path: Path) -> None:
    """And a run into results that exist says how to go on."""
    path = tmp_path / "models.jsonl"
    command = [sys.executable, "-m", "tests.coverage", "--source", "torch", "--only", "GLU", "--results", str(path)]

    def go(*options: str) -> str:
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "[1/1] torch GLU" in go("--resume")
    assert "torch GLU" not in go("--resume")
    assert len(path.read_text().splitlines()) == 1


def test_the_page_has_every_model() -> None:
    """With its verdicts, and faults with the reason; nothing of the machine that it was run on."""
    found = [
        Result(Case("torch", "GLU"), "0", 1.0, (Verdict(0, "base", "wrong", "a|b /x/site-packages/torch/f.py"),)),
        Result(Case("torch", "GRU"), "0", 1.0, (Verdict(0, "base", "right", "", (), ("aten::gru (2)",)),)),
    ]
    page = record.page({"commit": "0", "torch": "0", "transformers": "0", "total": 3}, found)
    assert "2 of 3 models" in page and "| torch | GRU | base: right |  | `aten::gru` |" in page
    assert "| GLU | base | wrong | `a/b torch/f.py` |" in page


@pytest.mark.parametrize("target", record.OF_TARGETS)
def test_the_committed_page_is_of_the_committed_record(target: str) -> None:
    """Nobody edited one without the other."""
    path, page = record.OF_TARGETS[target]
    kept = json.loads(path.read_text())
    found = [Result.from_json(line) for line in kept["models"]]
    assert record.page(kept, found) == page.read_text()


def test_small_configurations() -> None:
    """Each kind of layer stays, lists are as long as there are layers, tokens are words."""
    kinds = ["a", "a", "a", "b"] * 8
    fields = {
        "num_hidden_layers": 32,
        "layer_types": kinds,
        "hidden_size": 4096,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "eos_token_id": 31999,
        "rope_parameters": {"mrope_section": [16, 24, 24], "rope_theta": 1e4},
        "vision_config": {"image_size": 224, "patch_size": 14},
        "use_cache": True,
    }
    assert shrunk(fields) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "hidden_size": 64,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "eos_token_id": 127,
        "rope_parameters": {"mrope_section": [2, 3, 3], "rope_theta": 1e4},
        "vision_config": {"image_size": 56, "patch_size": 14},
        "use_cache": True,
    }
    assert shrunk(fields, widths=False)["hidden_size"] == 4096


def test_decode_goes_on_with_the_prompts_cache() -> None:
    """The reference of ``decode`` is what the whole prompt gives at its last place."""
    source = Transformers()
    prefill, decode = source.make("llama", "prefill"), source.make("llama", "decode")
    whole = torch.cat([prefill.kwargs["input_ids"], decode.kwargs["input_ids"]], 1)
    with torch.no_grad():
        expected = prefill.module(input_ids=whole).logits[:, -1:]
        torch.testing.assert_close(decode.module(**decode.kwargs).logits, expected, rtol=1e-4, atol=1e-5)


def test_models_of_the_day(tmp_path: Path) -> None:
    """Those that were right in the record are right; as many as a minute has time for."""
    kept = json.loads(record.RECORD.read_text())["models"]
    right = {
        (line["source"], line["name"]) for line in kept if {each["kind"] for each in line["variants"]} == {"right"}
    }
    path = tmp_path / "models.jsonl"
    day = datetime.date.today().isoformat()
    command = [sys.executable, "-m", "tests.coverage", "--slice", day, "--seconds", "8", "--results", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert path.exists(), done.stdout + done.stderr
    faults = [
        (each.case.name, fault)
        for each in results.read(path).values()
        if (each.case.source, each.case.name) in right
        for fault in each.faults
    ]
    assert faults == []
