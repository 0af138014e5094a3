"""Gives reductions over nothing their first value: TVM begins a sum in its first step, which an empty one has not."""

from __future__ import annotations

from functools import partial

from tvm import arith, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tkc.schedules.blocks import attempt, child_blocks, loop_kinds, nodes


def begin_before_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, in which a reduction that may have no steps is initialized before its loops.

    TVM lowers ``init`` to a condition on the first step. A mean of a tensor of size 0 would read what the memory held.
    Reductions among the threads of a GPU are initialized by each thread, and stay as they are.
    """
    if not any(isinstance(node, tirx.SBlock) and node.init is not None for node in nodes(func.body)):
        return func
    sch = s_tir.Schedule(func)
    pending = child_blocks(sch)
    while pending:
        block = pending.pop()
        pending += sch.get_child_blocks(block)
        loop = _first_step(sch, block)
        if loop is not None:
            # TVM does not divide what finds its places by dividing by symbolic sizes (pooling of images of any size):
            # such a block stays as it is, and is not begun where there is nothing to reduce.
            attempt(partial(_begin_at, sch, loop), block)
    return sch.mod["main"]


def _begin_at(sch: s_tir.Schedule, loop: LoopRV, block: SBlockRV) -> None:
    sch.decompose_reduction(block, loop)


def _first_step(sch: s_tir.Schedule, block: SBlockRV) -> LoopRV | None:
    """The outermost loop that ``block`` reduces over, if its reduction may have no steps."""
    if sch.get(block).init is None:
        return None
    reduced = [loop for loop, kind in zip(sch.get_loops(block), loop_kinds(sch, block), strict=True) if kind == "R"]
    loops = [sch.get(loop) for loop in reduced]
    if any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in loops):
        return None
    analyzer = arith.Analyzer()
    return None if all(analyzer.can_prove(loop.extent >= 1) for loop in loops) else reduced[0]
