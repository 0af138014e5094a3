"""Loops of GPU threads, written out: what rules use that TVM's primitives cannot follow, as where sizes are symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import DataType, s_tir, tirx

_VECTOR_BYTES = 16
_MOST_LANES = {"bool": 4}
_INDEX = "int64"


def kernel(
    func: tirx.PrimFunc,
    threads: int,
    total: tirx.PrimExpr,
    body: Callable[[tirx.Var], Sequence[tirx.Stmt]],
    registers: Sequence[tirx.Buffer],
) -> s_tir.Schedule:
    """``func`` computed by ``total`` threads, in blocks of ``threads``.

    ``body`` makes what one of them does of its number, an ``int64``; it keeps what it needs in ``registers``, buffers of
    the scope ``local``.
    """
    block, thread, number = (tirx.Var(name, _INDEX) for name in ("block", "thread", "number"))
    inside = tirx.IfThenElse(number < total, tirx.SeqStmt([*body(number)]), None)
    # nvcc writes loops out: TVM's passes would take seconds for what they are then.
    inside = tirx.AttrStmt(number, "pragma_unroll_explicit", tirx.IntImm("int32", 0), inside)
    named = tirx.SeqStmt([tirx.Bind(number, block * threads + thread), inside])
    inner = _launched(thread, tirx.IntImm(_INDEX, threads), named, "threadIdx.x")
    outer = _launched(block, tirx.floordiv(total + (threads - 1), threads), inner, "blockIdx.x")
    root = tirx.SBlock([], [], [], "root", outer, None, list(registers))
    return s_tir.Schedule(func.with_body(tirx.SBlockRealize([], True, root)))


def _launched(loop: tirx.Var, extent: tirx.PrimExpr, body: tirx.Stmt, axis: str) -> tirx.For:
    bound = tirx.IterVar((0, extent), tirx.Var(axis, _INDEX), tirx.IterVar.ThreadIndex, axis)
    return tirx.For(loop, tirx.IntImm(_INDEX, 0), extent, tirx.ForKind.THREAD_BINDING, body, bound)


def divided(
    number: tirx.PrimExpr, extents: Sequence[tirx.PrimExpr], names: Sequence[str]
) -> tuple[list[tirx.Var], list[tirx.Stmt]]:
    """Positions along axes of ``extents``, the last innermost, of the element ``number``; and what binds them.

    Quotients are rounded towards zero, which for positions is the same, and takes no selections by signs.
    """
    positions: list[tirx.Var] = []
    bindings: list[tirx.Stmt] = []
    for extent, name in zip(reversed(extents[1:]), reversed(names[1:]), strict=True):
        position, rest = tirx.Var(name, _INDEX), tirx.Var(f"above_{name}", _INDEX)
        bindings += [tirx.Bind(rest, tirx.truncdiv(number, extent)), tirx.Bind(position, number - rest * extent)]
        positions.insert(0, position)
        number = rest
    return [number, *positions], bindings


def in_turn(extent: int, body: Callable[[tirx.PrimExpr], tirx.Stmt], *, unrolled: bool = True) -> tirx.Stmt:
    """``body`` of each number below ``extent``."""
    kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
    loop = tirx.Var("i", _INDEX)
    return tirx.For(loop, tirx.IntImm(_INDEX, 0), tirx.IntImm(_INDEX, extent), kind, body(loop))


def move(
    target: tirx.Buffer,
    at: Sequence[tirx.PrimExpr],
    source: tirx.Buffer | None,
    index: Sequence[tirx.PrimExpr],
    lanes: int,
) -> list[tirx.Stmt]:
    """``lanes`` neighbours of ``source`` (of zeros, if ``None``) from ``index`` copied to ``target`` from ``at``, by
    16 bytes.

    The places of vectors must be aligned.
    """
    dtype = target.dtype
    width = min(lanes, _MOST_LANES.get(dtype, _VECTOR_BYTES // DataType(dtype).itemsize))

    def part(first: int) -> tirx.Stmt:
        lane = tirx.Var("lane", _INDEX)
        places = [[*start[:-1], start[-1] + first + lane] for start in (at, index)] if source is not None else None
        if places is None:
            store = tirx.BufferStore(target, tirx.const(0, dtype), [*at[:-1], at[-1] + first + lane])
        else:
            store = tirx.BufferStore(target, tirx.BufferLoad(source, places[1]), places[0])
        return tirx.For(
            lane, tirx.IntImm(_INDEX, 0), tirx.IntImm(_INDEX, width), tirx.ForKind.VECTORIZED, store
        )

    return [part(first) for first in range(0, lanes, width)]


def register(name: str, shape: Sequence[int], dtype: str) -> tirx.Buffer:
    """A buffer in a thread's registers: what is in it must be addressed by numbers once loops are written out."""
    return tirx.decl_buffer([tirx.IntImm(_INDEX, size) for size in shape], dtype, name, scope="local")


def index(number: int) -> tirx.IntImm:
    """A position."""
    return tirx.IntImm(_INDEX, number)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements, one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
