"""Loops of GPU threads, written out, for rules that TVM's primitives cannot follow, as where sizes are symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import DataType, s_tir, tirx

from tkc.schedules.blocks import nodes

_VECTOR_BYTES = 16
_MOST_LANES = {"bool": 4}
_INDEX = "int64"
_WARP = 32


@dataclass(frozen=True)
class Launch:
    """``blocks`` blocks of so many ``threads``, and what one of them does; all numbers are ``int64``.

    Either ``of_number`` says it by the thread's number among all, or ``of_row_and_lane`` by those of the block and of
    the thread in it. ``registers`` are the buffers of a thread, of the scope ``local``, and of a block, ``shared``.
    """

    threads: int
    blocks: tirx.PrimExpr
    of_number: Callable[[tirx.Var], Sequence[tirx.Stmt]] | None = None
    of_row_and_lane: Callable[[tirx.Var, tirx.Var], Sequence[tirx.Stmt]] | None = None
    registers: list[tirx.Buffer] = field(default_factory=list)

    def statement(self) -> tirx.Stmt:
        """The launch as loops over blocks and threads."""
        block, thread, number = (tirx.Var(name, _INDEX) for name in ("block", "thread", "number"))
        if self.of_row_and_lane is not None:
            inside = sequence([*self.of_row_and_lane(block, thread)])
        else:
            assert self.of_number is not None
            bound = tirx.Bind(number, block * self.threads + thread)
            inside = sequence([bound, *self.of_number(number)])
        # nvcc writes loops out: TVM's passes would take seconds for what they are then.
        inside = tirx.AttrStmt(thread, "pragma_unroll_explicit", tirx.IntImm("int32", 0), inside)
        inner = _bound(thread, index(self.threads), inside, "threadIdx.x")
        return _bound(block, self.blocks, inner, "blockIdx.x")


def launched(func: tirx.PrimFunc, launches: Sequence[tuple[tirx.PrimExpr | None, Launch]]) -> s_tir.Schedule | None:
    """``func`` computed by each of ``launches`` whose condition, of sizes, holds, or that has none.

    ``None`` where they read what is neither an argument nor in their registers.
    """
    statements = []
    for condition, launch in launches:
        statement = launch.statement()
        if condition is not None:  # TVM takes a kernel inside a loop, but not inside a condition
            once = tirx.Cast("int32", condition)
            statement = tirx.For(tirx.Var("chosen", "int32"), 0, once, tirx.ForKind.SERIAL, statement)
        statements.append(statement)
    code = sequence(statements)
    buffers = [buffer for _, launch in launches for buffer in launch.registers]
    known = {*buffers, *func.buffer_map.values()}
    accesses = (node for node in nodes(code) if isinstance(node, tirx.BufferLoad | tirx.BufferStore))
    if not all(access.buffer in known for access in accesses):
        return None
    root = tirx.SBlock([], [], [], "root", code, None, buffers)
    return s_tir.Schedule(func.with_body(tirx.SBlockRealize([], True, root)))


def _bound(loop: tirx.Var, extent: tirx.PrimExpr, body: tirx.Stmt, axis: str) -> tirx.For:
    thread = tirx.IterVar((0, extent), tirx.Var(axis, _INDEX), tirx.IterVar.ThreadIndex, axis)
    return tirx.For(loop, index(0), extent, tirx.ForKind.THREAD_BINDING, body, thread)


def divided(
    number: tirx.PrimExpr, extents: Sequence[tirx.PrimExpr], names: Sequence[str]
) -> tuple[list[tirx.PrimExpr], list[tirx.Stmt]]:
    """Positions along axes of ``extents``, the last innermost, of the element ``number``; and what binds them.

    Quotients are rounded towards zero, which for positions is the same, and takes no selections by signs.
    """
    if not extents:
        return [], []
    positions: list[tirx.PrimExpr] = []
    bindings: list[tirx.Stmt] = []
    for extent, name in zip(reversed(extents[1:]), reversed(names[1:]), strict=True):
        position, rest = tirx.Var(name, _INDEX), tirx.Var(f"above_{name}", _INDEX)
        bindings += [tirx.Bind(rest, tirx.truncdiv(number, extent)), tirx.Bind(position, number - rest * extent)]
        positions.insert(0, position)
        number = rest
    return [number, *positions], bindings


def in_turn(extent: int, body: Callable[[tirx.PrimExpr], tirx.Stmt]) -> tirx.Stmt:
    """``body`` of each number below ``extent``, written out."""
    loop = tirx.Var("i", _INDEX)
    return tirx.For(loop, index(0), index(extent), tirx.ForKind.UNROLLED, body(loop))


def move(
    target: tirx.Buffer,
    at: Sequence[tirx.PrimExpr],
    source: tirx.Buffer | None,
    places: Sequence[tirx.PrimExpr],
    lanes: int,
) -> list[tirx.Stmt]:
    """``lanes`` neighbours of ``source`` (zeros, if ``None``) from ``places`` copied to ``target`` from ``at``, by 16
    bytes.

    The places of vectors must be aligned.
    """
    dtype = target.dtype
    width = min(lanes, _MOST_LANES.get(dtype, _VECTOR_BYTES // DataType(dtype).itemsize))

    def part(first: int) -> tirx.Stmt:
        lane = tirx.Var("lane", _INDEX)
        value = tirx.const(0, dtype)
        if source is not None:
            value = tirx.BufferLoad(source, [*places[:-1], places[-1] + first + lane])
        store = tirx.BufferStore(target, value, [*at[:-1], at[-1] + first + lane])
        return tirx.For(lane, index(0), index(width), tirx.ForKind.VECTORIZED, store)

    return [part(first) for first in range(0, lanes, width)]


def reduced_together(
    memory: tirx.Buffer,
    combine: Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr],
    lane: tirx.PrimExpr,
    threads: int,
) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
    """What combines the first elements of ``memory``, a register, of ``threads``, and gives each of them the result.

    ``threads`` are a warp, whose numbers are ``lane``, or a block of warps; all must come here. With the buffers that
    warps exchange it by.
    """
    own = tirx.BufferLoad(memory, [index(0)])
    everyone = tirx.const(0xFFFFFFFF, "uint32")
    exchanged = "float32" if memory.dtype in ("float16", "bfloat16") else memory.dtype
    statements: list[tirx.Stmt] = []
    for distance in (16, 8, 4, 2, 1):
        numbers = (tirx.const(number, "int32") for number in (distance, _WARP, _WARP))
        other = tirx.call_intrin(
            exchanged, "tirx.tvm_warp_shuffle_xor", everyone, own.astype(exchanged), *numbers
        ).astype(memory.dtype)
        statements.append(tirx.BufferStore(memory, combine(own, other), [index(0)]))
    if threads == _WARP:
        return statements, []
    warps = threads // _WARP
    parts = tirx.decl_buffer([index(warps)], memory.dtype, "parts", scope="shared")
    warp = tirx.truncdiv(lane, index(_WARP))
    first = tirx.truncmod(lane, index(_WARP)) == 0
    statements.append(guarded(first, [tirx.BufferStore(parts, own, [warp])]))
    statements.append(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))
    whole = tirx.BufferLoad(parts, [index(0)])
    for number in range(1, warps):
        whole = combine(whole, tirx.BufferLoad(parts, [index(number)]))
    statements.append(tirx.BufferStore(memory, whole, [index(0)]))
    return statements, [parts]


def guarded(condition: tirx.PrimExpr, statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements where ``condition`` holds."""
    return tirx.IfThenElse(condition, sequence([*statements]), None)


def register(name: str, shape: Sequence[int], dtype: str) -> tirx.Buffer:
    """A buffer in a thread's registers: what is in it must be addressed by numbers once loops are written out."""
    return tirx.decl_buffer([index(size) for size in shape], dtype, name, scope="local")


def index(number: int) -> tirx.IntImm:
    """A position."""
    return tirx.IntImm(_INDEX, number)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements, one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
