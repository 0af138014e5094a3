"""Whether TVM's simplifier keeps the positions that a function computes.

TVM 0.25 takes ``(t * 4 + 2) % 6`` for a number from 2 to 0, and so ``(t * 4 + 2) % 6 // 3`` for 0 and ``… % 6 % 4`` for
``… % 6``: of a remainder whose dividend has a known remainder itself it derives wrong bounds. Such dividends come about
when loops are unrolled or vectorized, and positions of vectors are divided by their lanes. Here positions and
conditions are simplified as they will be then, and both forms computed for positions drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import arith, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import post_order_visit, substitute

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.data_conditions import FLOORS
from tkc.schedules.lowering.flat_places import Samples

_MOST_UNROLLED = 16
_MOST_TRIED = 64
_CONSTANT_KINDS = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


@dataclass(frozen=True)
class _Loop:
    variable: tirx.Var
    least: tirx.PrimExpr
    extent: tirx.PrimExpr
    kind: int

    @property
    def may_be_unrolled(self) -> bool:
        by_threads = self.kind == tirx.ForKind.THREAD_BINDING
        return not by_threads and isinstance(self.extent, tirx.IntImm) and self.extent.value <= _MOST_UNROLLED

    @property
    def lanes(self) -> int:
        """Of a loop that becomes a vector; 1 for others."""
        return int(self.extent) if self.kind == tirx.ForKind.VECTORIZED and self.may_be_unrolled else 1


def simplifies_rightly(func: tirx.PrimFunc) -> bool:
    """Whether all positions and conditions with quotients in ``func``, whose blocks are loops, stay what they are.

    Where divisors and strides are powers of two, as those of threads and vectors are, all bounds are right, and of
    divisors that are no constants TVM derives none.
    """
    if not any(isinstance(node, FLOORS) and _may_be_wrong(node) for node in nodes(func.body)):
        return True
    with np.errstate(all="ignore"):
        return all(_stays(expr, loops) for expr, loops in _with_quotients(func.body, ()))


def _may_be_wrong(quotient: tirx.FloorDiv | tirx.FloorMod) -> bool:
    if not isinstance(quotient.b, tirx.IntImm):
        return False
    strides = [factor for node in nodes(quotient.a) if isinstance(node, tirx.Mul) for factor in (node.a, node.b)]
    return any(isinstance(each, tirx.IntImm) and int(each).bit_count() != 1 for each in (quotient.b, *strides))


def _with_quotients(stmt: tirx.Stmt, loops: tuple[_Loop, ...]) -> Iterator[tuple[tirx.PrimExpr, tuple[_Loop, ...]]]:
    if isinstance(stmt, tirx.SeqStmt):
        for each in stmt.seq:
            yield from _with_quotients(each, loops)
    elif isinstance(stmt, tirx.For):
        yield from _with_quotients(stmt.body, (*loops, _Loop(stmt.loop_var, stmt.min, stmt.extent, stmt.kind)))
    elif isinstance(stmt, tirx.AttrStmt):
        if isinstance(stmt.node, tirx.IterVar):
            zero = tirx.const(0, stmt.node.var.dtype)
            loops = (*loops, _Loop(stmt.node.var, zero, stmt.value, tirx.ForKind.THREAD_BINDING))
        yield from _with_quotients(stmt.body, loops)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from ((expr, loops) for expr in _divided([stmt.condition]))
        yield from _with_quotients(stmt.then_case, loops)
        if stmt.else_case is not None:
            yield from _with_quotients(stmt.else_case, loops)
    elif isinstance(stmt, tirx.SBlockRealize):
        yield from ((expr, loops) for expr in _divided([stmt.predicate]))
        yield from _with_quotients(stmt.block.body, loops)
    elif isinstance(stmt, tirx.While):
        yield from _with_quotients(stmt.body, loops)
    elif isinstance(stmt, tirx.BufferStore):
        yield from ((expr, loops) for expr in _divided([*stmt.indices, *_positions(stmt.value)]))
    elif isinstance(stmt, tirx.Bind | tirx.Evaluate):
        yield from ((expr, loops) for expr in _divided(_positions(stmt.value)))


def _positions(value: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    """Where ``value`` reads, and the conditions that it depends on."""
    found: list[tirx.PrimExpr] = []

    def visit(node: object) -> None:
        if isinstance(node, tirx.BufferLoad):
            found.extend(node.indices)
        elif isinstance(node, tirx.Select):
            found.append(node.condition)
        elif isinstance(node, tirx.Call) and getattr(node.op, "name", "") == "tirx.if_then_else":
            found.append(node.args[0])

    post_order_visit(value, visit)
    return found


def _divided(exprs: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
    return [expr for expr in exprs if _has_quotient(expr)]


def _has_quotient(expr: tirx.PrimExpr) -> bool:
    found = False

    def visit(node: object) -> None:
        nonlocal found
        found |= isinstance(node, FLOORS)

    post_order_visit(expr, visit)
    return found


def _stays(expr: tirx.PrimExpr, loops: Sequence[_Loop]) -> bool:
    analyzer = arith.Analyzer()
    for loop in loops:
        analyzer.bind(loop.variable, tvm.ir.Range.from_min_extent(loop.least, loop.extent))
    used = set(undefined_vars(expr))
    unrolled = [loop for loop in loops if loop.may_be_unrolled and loop.variable in used]
    return all(_stays_written_out(expr, loops, constant, analyzer) for constant in _written_out(unrolled))


def _written_out(loops: Sequence[_Loop]) -> Iterator[list[_Loop]]:
    """Which loops have constant positions: none, as TVM simplifies before it unrolls; those that a schedule unrolls or
    makes vectors of; and of other short ones, of which TVM may take apart the first or last steps, any one, or all."""
    always = [loop for loop in loops if loop.kind in _CONSTANT_KINDS]
    short = [loop for loop in loops if loop.kind not in _CONSTANT_KINDS]
    yield []
    if always:
        yield always
    if len(short) > 1:
        yield from ([*always, loop] for loop in short)
    if short:
        yield [*always, *short]


def _stays_written_out(
    expr: tirx.PrimExpr, loops: Sequence[_Loop], constant: Sequence[_Loop], analyzer: arith.Analyzer
) -> bool:
    samples = Samples()
    for loop in loops:
        samples.enter(loop.variable, samples(loop.least), samples(loop.extent))
    for values in _values(constant):
        known = {loop.variable: tirx.const(value, loop.variable.dtype) for loop, value in values.items()}
        for loop, value in values.items():
            samples.bind(loop.variable, samples(value))
        written_out = substitute(expr, known)
        forms = [written_out]
        if expr.dtype != "bool":
            forms += (
                tirx.floordiv(written_out, loop.lanes) for loop, at in values.items() if loop.lanes > 1 and not at
            )
        if not all(np.array_equal(samples(form), samples(analyzer.simplify(form))) for form in forms):
            return False
    return True


def _values(loops: Sequence[_Loop]) -> Iterator[dict[_Loop, int]]:
    """Positions in ``loops``: all of them, or as many as are tried."""
    extents = [int(loop.extent) for loop in loops]
    count = int(np.prod(extents))
    numbers = range(count) if count <= _MOST_TRIED else np.random.default_rng(0).integers(0, count, _MOST_TRIED)
    for number in numbers:
        yield {
            loop: int(loop.least) + int(at)
            for loop, at in zip(loops, np.unravel_index(int(number), extents) if loops else (), strict=True)
        }
