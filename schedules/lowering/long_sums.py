"""Long sums in parts: 64 numbers, or 256 products, at a time are added up in float32, and the parts in float64.

Added one by one, n numbers take n roundings, all of which may go the same way: a sum of millions keeps three digits. In
parts it is as many as there are numbers in a part, whatever n is. They do go the same way where the numbers are few
different ones (squares of deviations of whole numbers, say); products of different elements are seldom so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import arith, tirx
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import loads, nodes, same_load, static
from tkc.schedules.lowering.sum_nests import SumNest, adds_in, known_product, sum_nest
from tkc.schedules.lowering.thread_reductions import reduce_among_threads

_MOST_TOTALS = 16
_SHORT_ROW = 16
_WIDE = "float64"
_ALWAYS = tirx.const(True, "bool")


@dataclass(frozen=True)
class _Lengths:
    """Sums of up to ``short`` numbers stay as they are; parts of longer ones have up to ``part``."""

    short: int
    part: int


_OF_NUMBERS = _Lengths(short=128, part=64)
_OF_PRODUCTS = _Lengths(short=1024, part=256)
_OF_ROWS_OF_PRODUCTS = _Lengths(short=4096, part=256)
_IN_THREAD = _Lengths(short=4096, part=512)  # TVM would write out the loops of parts that DLight has it unroll: of 256


def sum_in_parts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for the CPU, with its long sums of float32 in parts.

    What is known to add up few numbers stays as it is.
    """

    def lengths(nest: SumNest) -> _Lengths | None:
        of_products = _OF_ROWS_OF_PRODUCTS if _has_short_rows(nest) else _OF_PRODUCTS
        chosen = of_products if _adds_products(nest) else _OF_NUMBERS
        return chosen if _is_long(nest, chosen) else None

    return _with_parts(func, lengths, "global")


def sum_threads_in_parts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for a GPU, with what single threads sum in parts, if that is long.

    Totals take registers. So the tiles of matrix products stay as they are.
    """
    if not any(isinstance(node, tirx.For) and _is_long_among_threads(node) for node in nodes(func.body)):
        return func
    lowered = reduce_among_threads(func)

    def lengths(nest: SumNest) -> _Lengths | None:
        has_few = (known_product(nest.spatial) or _MOST_TOTALS + 1) <= _MOST_TOTALS
        return _IN_THREAD if _is_long(nest, _IN_THREAD) and has_few and nest.is_perfect() else None

    return _with_parts(lowered, lengths, "local")


def _is_long_among_threads(loop: tirx.For) -> bool:
    length = static(loop.extent)
    return loop.kind == tirx.ForKind.SERIAL and (length is None or length > _IN_THREAD.short) and adds_in(loop)


def _with_parts(func: tirx.PrimFunc, lengths: Callable[[SumNest], _Lengths | None], scope: str) -> tirx.PrimFunc:
    """``func`` with those of its sums in parts for which there are ``lengths``."""

    def in_parts(loop: tirx.For) -> tirx.Stmt | None:
        nest = sum_nest(loop)
        chosen = None if nest is None else lengths(nest)
        return None if nest is None or chosen is None else _Parts(nest, chosen.part, scope).statement()

    return func.with_body(ir_transform(func.body, in_parts, None, ["tirx.For"]))


def _has_short_rows(nest: SumNest) -> bool:
    """Whether one sum is of rows that LLVM writes out, to add up several rows at once, which parts would hinder."""
    length = static(nest.reducing[-1].extent)
    return not nest.spatial and len(nest.reducing) > 1 and length is not None and length < _SHORT_ROW


def _adds_products(nest: SumNest) -> bool:
    """Whether what is added are products of different elements, as of matrices; no squares, no ``x * sigmoid(x)``."""
    products = (node for node in nodes(nest.store.value) if isinstance(node, tirx.Mul))
    return any(_reads_others(node.a, node.b) and _reads_others(node.b, node.a) for node in products)


def _reads_others(expr: tirx.PrimExpr, other: tirx.PrimExpr) -> bool:
    """Whether ``expr`` reads an element that ``other`` does not."""
    others = list(loads(other))
    return not all(any(map(partial(same_load, element), others)) for element in loads(expr))


def _is_long(nest: SumNest, lengths: _Lengths) -> bool:
    steps = known_product(nest.reducing)
    return steps is None or steps > lengths.short


@dataclass(frozen=True)
class _Division:
    """A loop that is divided into parts of ``each`` iterations; they are parts of a sum only where ``applies``."""

    loop: tirx.For
    each: tirx.PrimExpr
    applies: tirx.PrimExpr


class _Parts:
    """The loops of a nest, one of them divided, so that what its iterations sum is added to totals in between."""

    def __init__(self, nest: SumNest, part: int, scope: str) -> None:
        self._nest = nest
        self._sums = nest.store.buffer
        shape = [loop.extent for loop in nest.spatial] or [tirx.const(1, "int64")]
        self._totals = tirx.decl_buffer(shape, _WIDE, f"{self._sums.name}_total", scope=scope)
        *self._inner, self._outermost = _divisions(nest, part)

    def statement(self) -> tirx.Stmt:
        """All of it, in a block that holds the totals."""
        init, spatial = self._nest.realize.block.init, self._nest.spatial
        start = [] if init is None else [self._for_each(spatial, [self._set_sum(init.value)])]
        zero = self._for_each(spatial, [self._set_total(tirx.const(0.0, _WIDE))])
        total = self._for_each(spatial, [self._set_sum(self._total_and_sum().astype(self._sums.dtype))])
        is_long = self._outermost.applies
        body = tirx.SeqStmt([*start, _if(is_long, zero), self._loops(), _if(is_long, total)])
        return _block(f"{self._sums.name}_in_parts", body, [self._totals])

    def _loops(self) -> tirx.Stmt:
        """The nest with a loop divided: the innermost that is long enough, of those whose lengths are not known."""
        loops = self._divided(self._outermost, self._outermost.applies)
        for division in reversed(self._inner):
            loops = tirx.IfThenElse(division.applies, _renewed(self._divided(division, _ALWAYS)), loops)
        return loops

    def _divided(self, division: _Division, moves: tirx.PrimExpr) -> tirx.Stmt:
        """The nest with parts of sums moved to the totals, where ``moves``."""
        block = self._nest.realize.block

        def rewritten(node: tirx.For | tirx.SBlock) -> tirx.For | tirx.SBlock | None:
            if isinstance(node, tirx.For):
                return self._in_parts(node, division.each, moves) if _is_same(node, division.loop) else None
            if block.init is None or not node.iter_vars or not node.iter_vars[0].var.same_as(block.iter_vars[0].var):
                return None
            return _without_init(node)

        return ir_transform(self._nest.loops[0], None, rewritten, ["tirx.For", "tirx.SBlock"])

    def _in_parts(self, loop: tirx.For, each: tirx.PrimExpr, moves: tirx.PrimExpr) -> tirx.For:
        """``loop`` as one over parts and one over the iterations of a part, after which the sums start anew."""
        part, step = (tirx.Var(f"{loop.loop_var.name}_{name}", loop.loop_var.dtype) for name in ("part", "step"))
        length, known = static(loop.extent), static(each)
        is_even = length is not None and known is not None and length % known == 0
        steps = each if is_even else tirx.min(each, loop.extent - part * each)
        body = substitute(loop.body, {loop.loop_var: part * each + step})
        unrolled = loop.kind == tirx.ForKind.UNROLLED and static(steps) is None  # which takes a number that is known
        kind = tirx.ForKind.SERIAL if unrolled else loop.kind
        inner = tirx.For(step, loop.min, steps, kind, body, annotations=loop.annotations)
        spatial = [other for other in self._nest.loops if any(map(other.same_as, self._nest.spatial))]
        inside = [other for other in spatial if _position(self._nest, other) > _position(self._nest, loop)]
        zero = tirx.const(0.0, self._sums.dtype)
        move = self._for_each(inside, [self._set_total(self._total_and_sum()), self._set_sum(zero)])
        parts = tirx.floordiv(loop.extent + (each - 1), each)
        return tirx.For(part, loop.min, parts, tirx.ForKind.SERIAL, tirx.SeqStmt([inner, _if(moves, move)]))

    def _for_each(self, loops: Sequence[tirx.For], statements: list[tirx.Stmt]) -> tirx.Stmt:
        """``statements``, about one sum, for all over which ``loops`` run."""
        body = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
        nest: tirx.Stmt = _block(self._totals.name, body, predicate=self._nest.predicate)
        for loop in reversed(loops):
            nest = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, nest, annotations=loop.annotations)
        return _renewed(nest)

    def _total_and_sum(self) -> tirx.PrimExpr:
        total = tirx.BufferLoad(self._totals, self._place())
        return total + tirx.BufferLoad(self._sums, self._nest.indices).astype(_WIDE)

    def _set_total(self, value: tirx.PrimExpr) -> tirx.Stmt:
        return tirx.BufferStore(self._totals, value, self._place())

    def _set_sum(self, value: tirx.PrimExpr) -> tirx.Stmt:
        return tirx.BufferStore(self._sums, value, self._nest.indices)

    def _place(self) -> list[tirx.PrimExpr]:
        return [loop.loop_var for loop in self._nest.spatial] or [tirx.const(0, "int64")]


def _divisions(nest: SumNest, part: int) -> list[_Division]:
    """Which loops may be divided, from the innermost on; one of them must be, by their lengths at run time.

    It is the first which, with the loops in it, adds more than a part. Where the last does not, there is one part.
    """
    found: list[_Division] = []
    inside = tirx.const(1, "int64")
    for loop in reversed(nest.reducing):
        steps = arith.Analyzer().simplify(inside * loop.extent)
        known, length = static(steps), static(loop.extent)
        if known is None or (known > part and (loop.kind == tirx.ForKind.SERIAL or _is_same(loop, nest.reducing[0]))):
            each = arith.Analyzer().simplify(tirx.max(tirx.floordiv(part, tirx.max(inside, 1)), 1))
            if length is not None and static(each) is not None:
                each = tirx.const(_even(length, int(each)), each.dtype)
            found.append(_Division(loop, each.astype(loop.loop_var.dtype), steps > part))
        if known is not None and found:
            break
        inside = steps
    return found


def _even(length: int, most: int) -> int:
    """Of how many iterations the parts of a loop are: as many each, unless they would be less than half of ``most``."""
    return next((each for each in range(most, most // 2, -1) if length % each == 0), most)


def _position(nest: SumNest, loop: tirx.For) -> int:
    return next(index for index, other in enumerate(nest.loops) if _is_same(other, loop))


def _is_same(one: tirx.For, other: tirx.For) -> bool:
    return bool(one.loop_var.same_as(other.loop_var))


def _if(condition: tirx.PrimExpr, statement: tirx.Stmt) -> tirx.Stmt:
    return statement if static(condition) == 1 else tirx.IfThenElse(condition, statement, None)


def _without_init(block: tirx.SBlock) -> tirx.SBlock:
    return tirx.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _block(
    name: str,
    body: tirx.Stmt,
    held: Sequence[tirx.Buffer] = (),
    predicate: tirx.PrimExpr = _ALWAYS,
) -> tirx.SBlockRealize:
    return tirx.SBlockRealize([], predicate, tirx.SBlock([], [], [], name, body, alloc_buffers=list(held)))


def _renewed(statement: tirx.Stmt) -> tirx.Stmt:
    """``statement`` with loops of its own, which may then stand beside the one that it was made of."""

    def renewed(loop: tirx.For) -> tirx.For:
        variable = tirx.Var(loop.loop_var.name, loop.loop_var.dtype)
        body = substitute(loop.body, {loop.loop_var: variable})
        return tirx.For(variable, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)

    return ir_transform(statement, None, renewed, ["tirx.For"])
