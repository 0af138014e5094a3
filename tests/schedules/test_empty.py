"""Functions without results to compute are left without a statement; those with any are not."""

from __future__ import annotations

import pytest
from tvm import te, tirx
from tvm.target import Target

from tkc.schedules.blocks import nodes
from tkc.schedules.rules.empty import schedule_empty


@pytest.mark.parametrize(("sizes", "computes"), [((0, 0), False), ((0, 4), True), ((4, 0), True)])
def test_only_what_has_no_elements_is_left_out(sizes: tuple[int, int], computes: bool) -> None:
    """A function of two results, either of which may be empty."""
    x = te.placeholder((4,), "float32", name="x")
    results = [te.compute((size,), lambda i: x[i] + 1.0, name=f"y{size}{nth}") for nth, size in enumerate(sizes)]
    scheduled = schedule_empty(te.create_prim_func([x, *results]), Target("llvm"))
    assert (scheduled is None) == computes
    if scheduled is not None:
        assert not [node for node in nodes(scheduled.mod["main"].body) if isinstance(node, tirx.BufferStore)]
