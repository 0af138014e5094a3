"""A slice of the fuzzer's graphs, always the same: none is wrong, crashes, hangs or fails inside TKC."""

from __future__ import annotations

import pytest

from tests.fuzz.chains import chains
from tests.fuzz.generate import generate
from tests.fuzz.judge import FAULTS, Options, judge

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


@pytest.mark.daily(5)
@pytest.mark.parametrize("index", range(35))
def test_chains(index: int) -> None:
    """Of pairs of operators that fusion joins."""
    verdict = judge(chains(SEED, index), Options())
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"
