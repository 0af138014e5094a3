"""A slice of the fuzzer's graphs, always the same: none is wrong, crashes, hangs or fails inside TKC."""

from __future__ import annotations

import pytest

import tkc
from tests.fuzz.chains import chains
from tests.fuzz.forms import FORMS
from tests.fuzz.generate import generate
from tests.fuzz.judge import FAULTS, Options, judge
from tests.fuzz.program import dynamic_shapes, source
from tests.fuzz.reference import module
from tests.fuzz.tensors import make_all
from tests.schedules.sources import generated_sources

SEED = 26
KNOWN: dict[int, str] = {}
"""What still fails; strict, so that a graph leaves this list when its fault is mended."""


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, marks=pytest.mark.xfail(reason=KNOWN[index], strict=True)) if index in KNOWN else index
        for index in range(8)
    ],
)
def test_graph(index: int) -> None:
    """Right, refused, or not exportable."""
    verdict = judge(generate(SEED, index), Options())
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"


@pytest.mark.daily(4)
@pytest.mark.parametrize("index", range(24))
def test_graph_of_known_sizes(index: int) -> None:
    """Compiled for one call's sizes, 0 and 1 among them."""
    verdict = judge(FORMS["fixed"](SEED, index), Options())
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"


@pytest.mark.daily(3)
@pytest.mark.parametrize("index", [*range(16), 74, 248])
def test_graph_by_dynamo(index: int) -> None:
    """Through ``torch.compile``. It was wrong of 74, the least of a mean of rows of which data selects none, and failed
    inside for an RMSNorm's weight of known size along an axis that has it by a formula (248)."""
    verdict = judge(generate(501, index), Options(entry="dynamo"))
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"


@pytest.mark.daily(5)
@pytest.mark.parametrize("index", range(35))
def test_chains(index: int) -> None:
    """Of pairs of operators that fusion joins."""
    verdict = judge(chains(SEED, index), Options())
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"


@pytest.mark.daily(5)
@pytest.mark.parametrize("index", range(35, 70))
def test_chains_have_schedules_for_a_gpu(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ones, up to CUDA code: without a GPU they cannot be called, and nvcc would take most of the time."""
    sources = generated_sources(monkeypatch)
    program = chains(SEED, index)
    inputs = make_all(program.given(), program.sizes.by_name()[0], "cpu")
    shapes = dynamic_shapes(program) if any(map(dict, program.sizes.calls)) else None
    try:
        tkc.compile(
            module(program, "cpu", source(program)),
            tuple(inputs),
            dynamic_shapes=shapes,
            target="cuda:sm_90a",
            kernels="none",
            database=False,
        )
    except tkc.UnsupportedModelError:
        return
    assert sources
