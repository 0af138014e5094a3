"""Reductions over short rows that lie one behind the other, as reductions over all that lies there.

A row of some ten elements makes no vectors. What LLVM makes of loops over such rows depends on how many it writes out,
and takes up to ten times as long as a loop of vectors over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import tirx
from tvm.ir import Range
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import is_reduction, iterator_kinds, static

_FEW = 1024


def merge_reductions(func: tirx.PrimFunc, lanes: int, keep: Callable[[tirx.SBlock], bool]) -> tirx.PrimFunc:
    """``func`` with one loop for the two innermost of sums and the like, where the last is shorter than two vectors.

    All are of known lengths, and what is read lies in their order. Reductions of few elements stay as they are, and so
    do blocks for which ``keep`` holds, and rows shorter than half of ``lanes`` that would leave a remainder. Each
    block's iterators must be its loops, in order.
    """

    def merged(outer: tirx.For) -> tirx.For | None:
        inner = outer.body
        if not isinstance(inner, tirx.For) or not isinstance(inner.body, tirx.SBlockRealize):
            return None
        block = inner.body.block
        if not is_reduction(block) or not iterator_kinds(block).endswith("RR") or keep(block):
            return None
        if not _is_worth(block, lanes) or not _lies_in_order(block):
            return None
        length = outer.extent * inner.extent
        values = [*inner.body.iter_values[:-2], outer.loop_var]
        realize = tirx.SBlockRealize(values, inner.body.predicate, _merge_last(block, length))
        return tirx.For(outer.loop_var, outer.min, length, outer.kind, realize)

    return func.with_body(ir_transform(func.body, None, merged, ["tirx.For"]))


def _is_worth(block: tirx.SBlock, lanes: int) -> bool:
    pairs = zip(block.iter_vars, iterator_kinds(block), strict=True)
    lengths = [static(iterator.dom.extent) for iterator, kind in pairs if kind == "R"]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths) or prod(known) <= _FEW or known[-1] >= 2 * lanes:
        return False
    return known[-2] * known[-1] % lanes == 0 or 2 * known[-1] >= lanes


def _lies_in_order(block: tirx.SBlock) -> bool:
    """Whether the last two iterators run over the last two dimensions of what they index, all of these."""
    rows, elements = block.iter_vars[-2:]
    along = False
    for read in block.reads:
        used = [bool({rows.var, elements.var} & set(undefined_vars(dimension.min))) for dimension in read.region]
        if not any(used):
            continue
        places = [dimension.min for dimension in read.region[-2:]]
        if any(used[:-2]) or not all(map(tirx.Var.same_as, (rows.var, elements.var), places)):
            return False
        if [static(size) for size in read.buffer.shape[-2:]] != [static(i.dom.extent) for i in (rows, elements)]:
            return False
        along = True
    return along


def _merge_last(block: tirx.SBlock, length: tirx.PrimExpr) -> tirx.SBlock:
    """``block`` with one iterator of ``length`` iterations in place of its last two."""
    *others, rows, elements = block.iter_vars
    both = tirx.Var(f"{rows.var.name}_{elements.var.name}", rows.var.dtype)
    parts = {
        rows.var: tirx.floordiv(both, elements.dom.extent),
        elements.var: tirx.floormod(both, elements.dom.extent),
    }

    def region(part: tirx.BufferRegion) -> tirx.BufferRegion:
        ranges = [Range.from_min_extent(substitute(of.min, parts), of.extent) for of in part.region]
        return tirx.BufferRegion(part.buffer, ranges)

    return tirx.SBlock(
        [*others, tirx.IterVar((rows.dom.min, length), both, rows.iter_type)],
        [region(part) for part in block.reads],
        block.writes,
        block.name_hint,
        substitute(block.body, parts),
        block.init,
        block.alloc_buffers,
        [],
        block.annotations,
    )
