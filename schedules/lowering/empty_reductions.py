"""Gives reductions over nothing their first value: TVM begins a sum in its first step, which an empty one has not."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from tvm import arith, s_tir, tirx
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import attempt, child_blocks, conjuncts, loop_kinds, nodes


def begin_before_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, in which a reduction that may have no steps is initialized before its loops.

    TVM lowers ``init`` to a condition on the first step. A mean of a tensor of size 0 would read what the memory held.
    Reductions among the threads of a GPU are initialized by each thread, and stay as they are.
    """
    if not any(isinstance(node, tirx.SBlock) and node.init is not None for node in nodes(func.body)):
        return func
    sch = s_tir.Schedule(func)
    while (left := _decompose_one(sch)) is None:
        pass
    beginnings: defaultdict[tirx.Var, list[tirx.Stmt]] = defaultdict(list)
    for block, loop in left:
        beginnings[sch.get(loop).loop_var].append(_beginning(sch, block, loop))
    return _with(sch.mod["main"], beginnings)


def _decompose_one(sch: s_tir.Schedule) -> list[tuple[SBlockRV, LoopRV]] | None:
    """Initialize one reduction that may have no steps before its loops; those that TVM cannot decompose if there is no
    other. What is known of blocks may not outlast that: TVM replaces all that is around the loops."""
    left = []
    pending = child_blocks(sch)
    while pending:
        block = pending.pop()
        pending += sch.get_child_blocks(block)
        loop = _first_step(sch, block)
        if loop is None:
            continue
        if attempt(partial(_decompose, sch, loop), block):
            return None
        left.append((block, loop))
    return left


def _decompose(sch: s_tir.Schedule, loop: LoopRV, block: SBlockRV) -> None:
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


def _beginning(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> tirx.Stmt:
    """What initializes ``block`` before ``loop``.

    TVM decomposes no reduction that finds its places by dividing by symbolic sizes, as a thread for each of them does.
    """
    realize, loops, kinds = get_sblockrealize(sch, block), sch.get_loops(block), loop_kinds(sch, block)
    first = next(place for place, each in enumerate(loops) if sch.get(each).same_as(sch.get(loop)))
    inside = list(zip(map(sch.get, loops[first:]), kinds[first:], strict=True))
    steps = {each.loop_var for each, kind in inside if kind == "R"}
    spatial = [each for each, kind in inside if kind == "S"]
    places = {i.var: value for i, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    own = {each.loop_var: tirx.Var(f"{each.loop_var.name}_init", each.loop_var.dtype) for each in spatial}
    body = substitute(realize.block.init, places)
    conditions = [each for each in conjuncts(realize.predicate) if steps.isdisjoint(undefined_vars(each))]
    if conditions:
        body = tirx.IfThenElse(tirx.all(*conditions), body, None)
    body = substitute(body, own)
    for each in reversed(spatial):
        body = tirx.For(own[each.loop_var], each.min, each.extent, each.kind, body)
    return body


def _with(func: tirx.PrimFunc, beginnings: dict[tirx.Var, list[tirx.Stmt]]) -> tirx.PrimFunc:
    """``func`` with ``beginnings`` before the loops of these variables. They are in a block each: sums are in one."""
    if not beginnings:
        return func

    def begun(loop: tirx.For) -> tirx.Stmt | None:
        before = beginnings.get(loop.loop_var, ())
        blocks = [
            tirx.SBlockRealize([], True, tirx.SBlock([], [], [], f"begin_{loop.loop_var.name}", each))
            for each in before
        ]
        return tirx.SeqStmt([*blocks, loop]) if blocks else None

    return func.with_body(ir_transform(func.body, None, begun, ["tirx.For"]))
