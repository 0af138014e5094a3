"""What share of a model's time is tuned, and the estimate that stands in for what is not measured."""

from __future__ import annotations

import pytest
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import CPU, fused, graph, size
from tests.schedules.random_schedules import the_function
from tkc.coverage import coverage
from tkc.runtime.report import Report
from tkc.runtime.report_rows import Coverage, Scheduled
from tkc.schedules.estimate import Cost, estimated_seconds
from tkc.schedules.target import tvm_target

TARGET = tvm_target(CPU)


def shares(found: Coverage) -> tuple[float, float, float]:
    """Exact, anchor, none."""
    return found.exact, found.anchor, found.none


def test_shares_weigh_calls_and_recorded_times() -> None:
    """Two calls of a function of 3 s against one of 2 s."""
    rows = [("database", Cost(2, 1.0, 3.0)), ("database (anchor)", Cost(1, 9.0, 2.0))]
    assert shares(coverage(rows)) == (0.75, 0.25, 0.0)


def test_what_is_not_recorded_is_scaled_by_what_is() -> None:
    """Records took ten times their estimates, so a function without one will too."""
    rows = [("database", Cost(1, 0.1, 1.0)), ("cpu-default", Cost(3, 0.1))]
    assert shares(coverage(rows)) == pytest.approx((0.25, 0.0, 0.75))


def test_no_functions_have_no_shares() -> None:
    """A model that is kernels alone has nothing to cover; one whose functions cost nothing neither."""
    assert coverage([]) == coverage([("fallback", Cost(1, 0.0))]) == Coverage()


def _estimate(inputs: list, body: object) -> float:
    return estimated_seconds(the_function(fused(graph(inputs, body), CPU))[1], TARGET)


def _matmul(builder: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return op.matmul(x, y)


def test_products_cost_their_operations() -> None:
    """Eight times the operations take eight times as long, once they outweigh the bytes."""
    one, two = (_estimate([((n, n), "float32")] * 2, _matmul) for n in (1024, 2048))
    assert two / one == pytest.approx(8, rel=0.01)


def test_elementwise_functions_cost_their_bytes() -> None:
    """An addition reads two tensors and writes one; in half the precision it takes half as long."""
    single, half = (
        _estimate([((1024, 1024), dtype)] * 2, lambda b, x, y: op.add(x, y)) for dtype in ("float32", "float16")
    )
    assert single / half == pytest.approx(2)
    copied = _estimate([((1024, 1024), "float32")], lambda b, x: op.negative(x))
    assert single / copied == pytest.approx(3 / 2)


def test_a_gather_does_not_cost_its_table() -> None:
    """Eight rows of a large table cost what eight rows of a small one do."""
    costs = [
        _estimate([((rows, 64), "float32"), ((8,), "int64")], lambda b, table, index: op.take(table, index, axis=0))
        for rows in (1000, 100_000)
    ]
    assert costs[0] == costs[1] > 0


def test_unknown_sizes_have_an_estimate() -> None:
    """One that grows with the function's known sizes."""

    def softmax(columns: int | tirx.PrimExpr) -> float:
        return _estimate([((size("n"), columns), "float32")], lambda b, x: op.nn.softmax(x))

    assert 0 < softmax(64) < softmax(1024)


def test_the_report_shows_shares_and_other_devices() -> None:
    """In its tables and in its JSON, which reads back as the same report."""
    scheduled = (Scheduled("dense", "database", "", 3, 1e-3, 2e-3, "H100"), Scheduled("sort", "fallback", "why"))
    report = Report("cpu", "auto", scheduled=scheduled, coverage=Coverage(0.5, 0.25, 0.25))
    shown = str(report)
    assert "50.0%" in shown
    assert "H100" in shown
    assert report.to_json()["coverage"] == {"exact": 0.5, "anchor": 0.25, "none": 0.25}
    assert Report.from_json(report.to_json()) == report
