"""Reductions padded to whole vectors with the neutral element, so that their innermost loop has no remainder.

TVM's ``rfactor`` guards a remainder with a block predicate, under which lanes that the guard skips never get their
initial value, and which ``compute_at`` drops. A guard inside the value has neither flaw.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import arith, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels.reducers import NEUTRAL
from tkc.schedules.blocks import is_reduction, reads_along, static
from tkc.schedules.rules.split_reductions import has_neutral

_PADDED = (tirx.Add, tirx.Max, tirx.Min)


def pad_reductions(func: tirx.PrimFunc, lanes: int, keep: Callable[[tirx.SBlock], bool]) -> tirx.PrimFunc:
    """``func`` with the innermost loop of sums, maxima and minima along contiguous data a multiple of ``lanes`` long.

    Loops known to be shorter than two vectors stay as they are, and so do blocks for which ``keep`` holds. Each block's
    iterators must be its loops, in order.
    """
    analyzer = arith.Analyzer()

    def padded(loop: tirx.For) -> tirx.For | None:
        realize = loop.body
        if not isinstance(realize, tirx.SBlockRealize) or not _can_pad(realize.block) or keep(realize.block):
            return None
        length = static(loop.extent)
        if length is not None and (length < 2 * lanes or length % lanes == 0):
            return None
        whole = analyzer.simplify(tirx.floordiv(loop.extent + (lanes - 1), lanes) * lanes)
        block = _pad_block(realize.block, whole)
        realize = tirx.SBlockRealize(realize.iter_values, realize.predicate, block)
        return tirx.For(loop.loop_var, loop.min, whole, loop.kind, realize)

    return func.with_body(ir_transform(func.body, None, padded, ["tirx.For"]))


def _can_pad(block: tirx.SBlock) -> bool:
    if not is_reduction(block) or block.iter_vars[-1].iter_type != tirx.IterVar.CommReduce:
        return False
    return reads_along(block, -1) and has_neutral(block) and isinstance(block.body.value, _PADDED)


def _pad_block(block: tirx.SBlock, length: tirx.PrimExpr) -> tirx.SBlock:
    """``block`` with ``length`` iterations of its last iterator; those past the end reduce the neutral element."""
    *others, last = block.iter_vars
    combined = block.body.value
    neutral = NEUTRAL[type(combined)](combined.dtype)
    guarded = tirx.if_then_else(last.var < last.dom.extent, combined.b, neutral)
    store = tirx.BufferStore(block.body.buffer, type(combined)(combined.a, guarded), block.body.indices)
    longer = tirx.IterVar((last.dom.min, length), last.var, last.iter_type)
    return tirx.SBlock(
        [*others, longer],
        block.reads,
        block.writes,
        block.name_hint,
        store,
        block.init,
        block.alloc_buffers,
        [],
        block.annotations,
    )
