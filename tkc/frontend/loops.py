"""Functions of numbers that need loops of their own, such as recurrences and series, over the elements of tensors.

TensorIR's expressions have no loops, so each element has local memory of single numbers, :class:`Cell`, and statements
that change them. Elements are computed in parallel: in threads on a GPU, in runs of :data:`_CHUNK` on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from tvm import relax, tirx
from tvm.ir import Range

from tkc.contracts import EACH_IN_A_THREAD, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN, S_TIR

Number: TypeAlias = tirx.PrimExpr

_CHUNK = 128


class Cell:
    """One number of an element, in memory; :meth:`Loops.set` changes it."""

    def __init__(self, buffer: tirx.Buffer) -> None:
        self.buffer = buffer

    @property
    def value(self) -> Number:
        """What it holds where this is evaluated."""
        return tirx.BufferLoad(self.buffer, [tirx.const(0, "int32")])


class Loops:
    """Collects the statements that compute one element."""

    def __init__(self) -> None:
        self.buffers: list[tirx.Buffer] = []
        self.statements: list[tirx.Stmt] = []

    def cell(self, name: str, value: Number) -> Cell:
        """A cell that begins with ``value``."""
        cell = Cell(tirx.decl_buffer((1,), value.dtype, name, scope="local"))
        self.buffers.append(cell.buffer)
        self.set(cell, value)
        return cell

    def set(self, cell: Cell, value: Number) -> None:
        """Store ``value``."""
        self.statements.append(tirx.BufferStore(cell.buffer, value, [tirx.const(0, "int32")]))

    @contextmanager
    def when(self, condition: Number) -> Iterator[None]:
        """What is stated within is done where ``condition`` holds."""
        with self._apart() as inside:
            yield
        self.statements.append(tirx.IfThenElse(condition, _sequence(inside), None))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """What is stated within is done where the condition of the :meth:`when` right before did not hold."""
        before = self.statements.pop()
        assert isinstance(before, tirx.IfThenElse)
        with self._apart() as inside:
            yield
        self.statements.append(tirx.IfThenElse(before.condition, before.then_case, _sequence(inside)))

    @contextmanager
    def loop(self, condition: Number) -> Iterator[None]:
        """What is stated within is done again as long as ``condition``, evaluated before each time, holds."""
        with self._apart() as inside:
            yield
        self.statements.append(tirx.While(condition, _sequence(inside)))

    @contextmanager
    def _apart(self) -> Iterator[list[tirx.Stmt]]:
        outer, self.statements = self.statements, []
        inside = self.statements
        try:
            yield inside
        finally:
            self.statements = outer


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


Program: TypeAlias = Callable[..., Number]
"""Takes :class:`Loops` and an element of each operand, states what is to be done, and returns the result."""


def emit_loops(
    builder: relax.BlockBuilder,
    name: str,
    program: Program,
    operands: Sequence[relax.Expr],
    dtype: str,
    tables: Sequence[relax.Expr] = (),
) -> relax.Var:
    """``program`` of each element of ``operands [N]``, as ``[N]`` of ``dtype``.

    ``tables``, of known shapes, reach the program whole, as buffers behind the elements.
    """
    function = _function(name, program, operands, dtype, tables)
    info = relax.TensorStructInfo(operands[0].struct_info.shape.values, dtype)
    return builder.emit(relax.call_tir(builder.add_func(function, name), [*operands, *tables], info))


def _function(
    name: str, program: Program, operands: Sequence[relax.Expr], dtype: str, tables: Sequence[relax.Expr]
) -> tirx.PrimFunc:
    count = tirx.Var("count", "int64")
    dtypes = [str(operand.struct_info.dtype) for operand in operands]
    buffers = [tirx.decl_buffer((count,), own, f"x{position}") for position, own in enumerate(dtypes)]
    held = [
        tirx.decl_buffer(list(table.struct_info.shape.values), str(table.struct_info.dtype), f"table{position}")
        for position, table in enumerate(tables)
    ]
    out = tirx.decl_buffer((count,), dtype, "out")
    chunk, lane = tirx.Var("chunk", "int64"), tirx.Var("lane", "int64")
    zero, lanes = tirx.const(0, "int64"), tirx.const(_CHUNK, "int64")
    i = chunk * lanes + lane

    loops = Loops()
    elements = [
        loops.cell(f"e{position}", tirx.BufferLoad(buffer, [i])).value for position, buffer in enumerate(buffers)
    ]
    result = program(loops, *elements, *held)
    loops.statements.append(tirx.BufferStore(out, result, [i]))
    element = tirx.IfThenElse(i < count, _sequence(loops.statements), None)

    def whole(buffer: tirx.Buffer) -> tirx.BufferRegion:
        ranges = [Range.from_min_extent(tirx.const(0, "int64"), size) for size in buffer.shape]
        return tirx.BufferRegion(buffer, ranges)

    block = tirx.SBlock(
        [], list(map(whole, [*buffers, *held])), [whole(out)], name, element, alloc_buffers=loops.buffers
    )
    inner = tirx.For(
        lane,
        zero,
        lanes,
        tirx.ForKind.SERIAL,
        tirx.SBlockRealize([], True, block),
        annotations={EACH_IN_A_THREAD: True},
    )
    outer = tirx.For(chunk, zero, tirx.ceildiv(count, lanes), tirx.ForKind.PARALLEL, inner)
    root = tirx.SBlockRealize([], True, tirx.SBlock([], [], [], "root", outer))
    parameters = {tirx.Var(f"{buffer.name}_handle", "handle"): buffer for buffer in (*buffers, *held, out)}
    function = tirx.PrimFunc(list(parameters), root, buffer_map=parameters)
    return function.with_attrs({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN, S_TIR: True})
