"""A slice of the fuzzer's graphs, always the same: none is wrong, crashes, hangs or fails inside TKC."""

from __future__ import annotations

import pytest

from tests.fuzz.generate import generate
from tests.fuzz.judge import FAULTS, Options, judge

SEED = 26


@pytest.mark.parametrize("index", range(16))
def test_graph(index: int) -> None:
    """Right, refused, or not exportable."""
    verdict = judge(generate(SEED, index), Options())
    assert verdict.kind not in FAULTS, f"{verdict.kind}: {verdict.reason}"
