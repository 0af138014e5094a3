"""Functions whose results have no elements, which nothing needs to compute."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from tkc.schedules.blocks import nodes, static


def schedule_empty(func: tirx.PrimFunc, _: Target) -> s_tir.Schedule | None:
    """``func`` without a statement, if each buffer that it stores to has a size of 0; else ``None``.

    Rules would make vectors and threads of loops that never run, which code generation refuses.
    """
    stores = [node for node in nodes(func.body) if isinstance(node, tirx.BufferStore)]
    if not stores or not all(0 in map(static, store.buffer.shape) for store in stores):
        return None
    nothing = tirx.SBlock([], [], [], "root", tirx.Evaluate(0))
    return s_tir.Schedule(func.with_body(tirx.SBlockRealize([], True, nothing)))
