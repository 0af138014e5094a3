"""Reductions of many elements in parts of equal length: iterators over the parts, and over the elements of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import arith, tirx
from tvm.ir import Range
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.kernels.reducers import NEUTRAL
from tkc.schedules.blocks import iterator_kinds, static

_ROOT = "root"
_INDEX = "int64"


@dataclass(frozen=True)
class Parts:
    """So many parts of a reduction, each of a multiple of ``unit`` elements."""

    number: int
    unit: int


def has_neutral(block: tirx.SBlock) -> bool:
    """Whether ``block`` combines numbers by an operation that has a neutral element."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and type(store.value) in NEUTRAL
        and isinstance(store.value.a, tirx.BufferLoad)
        and store.value.a.buffer.same_as(store.buffer)
    )


def reduced(block: tirx.SBlock) -> list[tirx.IterVar]:
    """The iterators that ``block`` reduces over."""
    return [i for i, kind in zip(block.iter_vars, iterator_kinds(block), strict=True) if kind == "R"]


def with_parts(func: tirx.PrimFunc, parts: Mapping[str, Parts]) -> tirx.PrimFunc:
    """``func`` whose blocks of those names, reductions, have two innermost loops: over parts, and in each of these.

    Where the last parts are not whole, neutral elements follow, which the operation must have. The blocks' iterators
    must be their loops, in order. Around every block there is one loop at least that it does not reduce over.
    """

    def divided(statement: tirx.Stmt) -> tirx.Stmt | None:
        loops: list[tirx.For] = []
        inner = statement
        while isinstance(inner, tirx.For):
            loops.append(inner)
            inner = inner.body
        if not isinstance(inner, tirx.SBlockRealize) or inner.block.name_hint == _ROOT:
            return None
        outer, realize = loops, inner
        if (part := parts.get(inner.block.name_hint)) is not None:
            outer = [loop for loop, kind in zip(loops, _kinds_of_loops(inner, loops), strict=True) if kind == "S"]
            realize, own = _divided(inner, part)
        else:
            own = []
        result: tirx.Stmt = realize
        for variable, extent in reversed(own):
            result = tirx.For(variable, tirx.IntImm(_INDEX, 0), extent, tirx.ForKind.SERIAL, result)
        for loop in reversed(outer):
            result = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, result)
        if not outer:
            once = tirx.IntImm(_INDEX, 1)
            result = tirx.For(tirx.Var("once", _INDEX), tirx.IntImm(_INDEX, 0), once, tirx.ForKind.SERIAL, result)
        return result

    return func.with_body(ir_transform(func.body, divided, None, ["tirx.For", "tirx.SBlockRealize"]))


def _kinds_of_loops(realize: tirx.SBlockRealize, loops: Sequence[tirx.For]) -> str:
    """A letter for each of ``loops``, that of the iterator which it is."""
    kinds = dict(zip(realize.iter_values, iterator_kinds(realize.block), strict=True))
    return "".join(kinds[loop.loop_var] for loop in loops)


def _divided(
    realize: tirx.SBlockRealize, parts: Parts
) -> tuple[tirx.SBlockRealize, list[tuple[tirx.Var, tirx.PrimExpr]]]:
    """A block with iterators over parts, and in them, as its last, in place of those that it reduces over.

    With the loops over these.
    """
    block, analyzer = realize.block, arith.Analyzer()
    length: tirx.PrimExpr = tirx.IntImm(_INDEX, 1)
    for iterator in reduced(block):
        length = analyzer.simplify(length * iterator.dom.extent.astype(_INDEX))
    whole = parts.number * parts.unit
    each = analyzer.simplify(tirx.floordiv(length + (whole - 1), whole) * parts.unit)
    extents = [tirx.IntImm(_INDEX, parts.number), each]
    part, inside = (
        tirx.IterVar(Range(tirx.IntImm(_INDEX, 0), extent), tirx.Var(name, _INDEX), tirx.IterVar.CommReduce)
        for name, extent in zip(("v_part", "v_inside"), extents, strict=True)
    )
    number = part.var * each + inside.var
    places = _places(number, reduced(block))
    body = substitute(block.body, places)
    known = static(length)
    if known is None or known % whole:
        combined = body.value
        neutral = NEUTRAL[type(combined)](combined.dtype)
        guarded = tirx.if_then_else(number < length, combined.b, neutral)
        body = tirx.BufferStore(body.buffer, type(combined)(combined.a, guarded), body.indices)

    def region(of: tirx.BufferRegion) -> tirx.BufferRegion:
        ranges = [Range.from_min_extent(substitute(axis.min, places), axis.extent) for axis in of.region]
        return tirx.BufferRegion(of.buffer, ranges)

    kept = [
        (iterator, value)
        for iterator, value, kind in zip(block.iter_vars, realize.iter_values, iterator_kinds(block), strict=True)
        if kind == "S"
    ]
    rewritten = tirx.SBlock(
        [*(iterator for iterator, _ in kept), part, inside],
        [region(read) for read in block.reads],
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        [],
        block.annotations,
    )
    loops = [(tirx.Var(name, _INDEX), extent) for name, extent in zip(("part", "inside"), extents, strict=True)]
    values = [*(value for _, value in kept), *(variable for variable, _ in loops)]
    return tirx.SBlockRealize(values, realize.predicate, rewritten), loops


def _places(number: tirx.PrimExpr, iterators: Sequence[tirx.IterVar]) -> dict[tirx.Var, tirx.PrimExpr]:
    """The values of ``iterators``, the last innermost, in the iteration ``number``."""
    places: dict[tirx.Var, tirx.PrimExpr] = {}
    inner: tirx.PrimExpr = tirx.IntImm(_INDEX, 1)
    for iterator in reversed(iterators):
        extent = iterator.dom.extent.astype(_INDEX)
        rest = tirx.floordiv(number, inner)
        place = rest if iterator.same_as(iterators[0]) else tirx.floormod(rest, extent)
        places[iterator.var] = place.astype(iterator.var.dtype)
        inner = inner * extent
    return places
