"""Scans on CUDA targets: one launch along a short axis, a wide grid, and what becomes part of what reads it."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax import op

from tests.schedules.gpu_cases import (
    BATCH,
    HOPPER,
    LENGTH,
    SHORT_SCANS,
    Case,
    cuda_source,
    reversed_rows,
    rows,
    running_sums,
)
from tests.schedules.graphs import build, fused, graph, scheduled


def test_a_gather_is_part_of_what_reads_it() -> None:
    """One function, and no tensor of indices for all that they are the same for."""
    module, report = scheduled(graph([rows("bfloat16")], reversed_rows), HOPPER)
    (entry,) = report
    indices = [buffer for buffer in module[entry.function].buffer_map.values() if buffer.dtype == "int64"]
    assert [list(map(int, buffer.shape)) for buffer in indices] in ([], [[1, 1, 96]])


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", SHORT_SCANS, ids=lambda case: case.name)
def test_a_scan_along_a_short_axis_is_one_launch(case: Case) -> None:
    """Of a thread for each, over the tensor as it lies."""
    module, report = scheduled(graph(case.inputs("bfloat16"), case.body), HOPPER)
    scans = [function for name, function in module.functions_items() if name.name_hint == "scan"]
    assert [script.count("blockIdx.x") for script in map(str, scans)] == [1]
    assert not any("scan" in entry.function or "transpose" in entry.function for entry in report)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)


@pytest.mark.parametrize("keeps", [False, True], ids=["for each element", "for each sum"])
def test_no_sum_is_computed_again_for_each_element_that_reads_it(keeps: bool) -> None:
    """What follows is in the same kernel only where it has as many elements as there are sums."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        mean = b.emit(op.mean(x, 1, keepdims=True))
        return op.nn.relu(mean) if keeps else op.subtract(x, mean)

    module, report = scheduled(graph([((BATCH, LENGTH, 96), "float32")], body), HOPPER)
    (entry,) = report
    assert entry.scheduled_by == "gpu-strided-reduction"
    assert module[entry.function].script().count('thread="blockIdx.x"') == (1 if keeps else 2)


def test_views_that_scans_are_taken_of_share_memory_in_planning() -> None:
    """As reshapes; TVM's own calls would be taken for tensors with memory of their own."""
    module = fused(graph([((BATCH, LENGTH, 2048), "float32")], running_sums), HOPPER)
    assert "gpu_2d_continuous_cumsum" in module.script()
    assert "vm.builtin.reshape" not in module.script()
