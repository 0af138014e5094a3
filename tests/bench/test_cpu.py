"""The benchmark of models on the CPU: rows, names that it does not know, and what one contender cannot run."""

from __future__ import annotations

import pytest

from tkc.bench.cpu import bench_cpu
from tkc.bench.cpu_models import CPU_MODELS
from tkc.errors import UsageError


def test_a_row_has_the_fastest_of_the_others_over_ours() -> None:
    """And the error is that of the compiled model."""
    (row,) = bench_cpu(["three-layers"], ["eager"], 0.05, ())
    ours, eager = row.milliseconds.values()
    assert row.ratio == pytest.approx(eager / ours)
    assert row.error is not None and row.error < 1e-5


def test_unknown_names_are_refused() -> None:
    """Before anything is measured."""
    with pytest.raises(UsageError, match="three-layer"):
        next(iter(bench_cpu(["three-layer"], ["eager"], 0.05, ())))
    with pytest.raises(UsageError, match="eagre"):
        next(iter(bench_cpu(["three-layers"], ["eagre"], 0.05, ())))
    assert "three-layers" in CPU_MODELS
