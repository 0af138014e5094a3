"""The fuzzer itself: the same graphs everywhere, no false alarms, faults found and made small."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.conformance.pool import Limits
from tests.conformance.results import ROOT
from tests.fuzz import chains as chains_of
from tests.fuzz import results
from tests.fuzz.elementwise import OPERATORS as ELEMENTWISE
from tests.fuzz.found import signature, written_case
from tests.fuzz.generate import generate
from tests.fuzz.judge import Options, Verdict
from tests.fuzz.program import Program, infer, source
from tests.fuzz.reference import Expected, Run, eager
from tests.fuzz.run import Chunk, judge_alone, run
from tests.fuzz.shrink import shrink
from tests.fuzz.table import OPERATORS


@pytest.mark.daily(1)
def test_graphs_are_the_same_in_every_process() -> None:
    """Whatever order its sets have."""
    text = "from tests.fuzz.forms import FORMS\nprint([repr(make(3, k)) for make in FORMS.values() for k in range(3)])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("index", range(6))
def test_what_is_inferred_holds_and_eager_results_pass(index: int) -> None:
    """PyTorch's own results are within the bound, with the shapes and dtypes that are known before."""
    program = generate(2, index)
    types = infer(program)
    for position, sizes in enumerate(program.sizes.by_name()):
        expected = Expected(program, sizes)
        assert expected.difference(expected.eager) is None
        for output, tensor in zip(program.outputs, expected.eager.outputs, strict=True):
            assert tuple(tensor.shape) == program.sizes.shapes(types[output].shape)[position]
            assert str(tensor.dtype) == f"torch.{types[output].dtype}"


def test_chains_have_each_pair_of_operators() -> None:
    """Once a round; what an operator reads of the one before, nothing else reads, and it is not returned."""
    pairs = chains_of.pairs_of(5)
    assert len(pairs) > 10_000
    others = {name for name, operator in OPERATORS.items() if not operator.motif} - set(ELEMENTWISE)
    counts = Counter(pairs)
    assert all(counts[first, second] == 1 for first in others for second in others)
    program = chains_of.chains(5, 0)
    readers = Counter(arg for node in program.nodes for arg in node.args)
    made = {value for node in program.nodes for value in node.results}
    assert len(program.outputs) > chains_of.CHAINS // 2
    inner = made - set(program.outputs)
    assert inner
    assert all(len([node for node in program.nodes if value in node.args]) <= 1 for value in inner & set(readers))


def test_small_errors_are_found() -> None:
    """One element, wrong by a thousandth part, in each result of floats."""
    found, tried = 0, 0
    for index in range(16):
        program = generate(2, index)
        expected = Expected(program, program.sizes.by_name()[0])
        for position, (tensor, dtype) in enumerate((t, t.dtype) for t in expected.eager.outputs):
            if dtype != torch.float32 or not tensor.numel() or not tensor.flatten()[0].isfinite():
                continue
            changed = tensor.clone()
            first = (0,) * changed.dim()
            changed[first] = changed[first] * 1.001 + 1e-3
            outputs = list(expected.eager.outputs)
            outputs[position] = changed
            tried += 1
            found += expected.difference(Run(tuple(outputs), expected.eager.updated)) is not None
    assert tried >= 20
    assert found >= 0.85 * tried  # an ill-conditioned one may hide it


def test_roundings_within_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """``1 + erf(x)`` of what nearly cancels, which a normalization makes larger, may have any rounding of ``erf``."""
    program, sizes = generate(202716, 2797), {"n0": 127}
    expected = Expected(program, sizes)
    monkeypatch.setattr(F, "gelu", lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)))
    assert expected.difference(eager(program, sizes)) is None
    monkeypatch.setattr(F, "gelu", lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5) * (1 - 2.0**-18)))
    assert expected.difference(eager(program, sizes)) is not None


def test_a_layer_norm_of_near_numbers_has_a_rounded_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that differ by a twentieth, half a unit of the mean's last place is 3e-6 of the result."""
    program, sizes = generate(202717, 6885), {}
    expected = Expected(program, sizes)

    def normalized(ulps: int) -> Callable[..., torch.Tensor]:
        def layer_norm(x: torch.Tensor, _: object, weight: torch.Tensor) -> torch.Tensor:
            mean = (x.double().mean(-1, keepdim=True) * (1 + ulps * 2.0**-24)).to(x.dtype)
            return (x - mean) * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt() * weight

        return layer_norm

    for ulps, is_right in ((1, True), (-1, True), (16, False), (-16, False)):
        monkeypatch.setattr(F, "layer_norm", normalized(ulps))
        assert (expected.difference(eager(program, sizes)) is None) == is_right


def test_failures_shrink_to_their_cause() -> None:
    """A fault of one operator ends as a graph of that operator alone, with one call."""

    def has(program: Program, name: str) -> bool:
        return any(node.op == name for node in program.nodes)

    program = next(p for p in (generate(4, k) for k in range(200)) if has(p, "softmax") and len(p.nodes) > 8)
    small = shrink(program, lambda candidate: has(candidate, "softmax"), 30.0)
    assert [node.op for node in small.nodes] == ["softmax"]
    assert len(small.sizes.calls) == 1
    compile(written_case("x", small, Verdict("wrong", "why")), "<test>", "exec")
    assert "softmax" in source(small)


def test_a_graph_that_kills_its_process_has_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one of a crash, or of a hang."""
    monkeypatch.setattr("tests.fuzz.run.judge", lambda *_: os.abort())
    assert judge_alone(generate(1, 1), Options(), Limits(20.0)).kind == "crash"
    monkeypatch.setattr("tests.fuzz.run.judge", lambda *_: _spin())
    assert judge_alone(generate(1, 1), Options(), Limits(1.0)).kind == "hang"


@pytest.mark.parametrize(("pytorch", "kind"), [(os.abort, "not exportable"), (lambda: Verdict("right"), "crash")])
def test_a_crash_of_pytorch_alone_is_its_own(
    monkeypatch: pytest.MonkeyPatch, pytorch: Callable[[], Verdict], kind: str
) -> None:
    """And one that needs TKC is not."""
    monkeypatch.setattr("tests.fuzz.run.judge", lambda *_: os.abort())
    monkeypatch.setattr("tests.fuzz.run.pytorch_alone", lambda *_: pytorch())
    ((_, judged),) = run([Chunk(1, (1,), Options(), "graphs")], 1, Limits(20.0))
    assert [each.verdict.kind for each in judged] == [kind]


def _spin() -> None:
    while True:
        pass


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A line that was cut off is left out."""
    result = results.Result(1, 2, Options(), "version", 5, 0.25, Verdict("wrong", "why", 3), "chains")
    results.append(tmp_path / "r.jsonl", result)
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"seed": 1, "ind')
    assert results.read(tmp_path / "r.jsonl") == [result]


def test_failures_of_one_cause_have_one_signature() -> None:
    """Numbers and sizes do not tell them apart; the verdict does."""
    first = Verdict("internal", "at {'n0': 3}: InternalError: Check failed: 3 vs. 5")
    assert signature(first) == signature(replace(first, reason="at {'n0': 7}: InternalError: Check failed: 8 vs. 1"))
    assert signature(first) != signature(replace(first, kind="crash"))
