"""What schedules a function no rule fits: it runs as written, on the CPU, or in one GPU thread."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import launches_threads, top_level_statements


def as_written(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` unchanged, for the CPU: whatever its author made parallel already is."""
    return func


def in_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with every statement that launches no GPU threads of its own in a single one."""
    root = func.body.block
    threaded = [
        statement if launches_threads(statement) else _single_thread(statement)
        for statement in top_level_statements(func)
    ]
    block = tirx.SBlock(
        [],
        [],
        [],
        root.name_hint,
        tirx.SeqStmt(threaded) if len(threaded) > 1 else threaded[0],
        None,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(tirx.SBlockRealize([], True, block))


def _single_thread(statement: tirx.Stmt) -> tirx.For:
    serial = ir_transform(statement, None, _serial, ["tirx.For"])
    thread = tirx.IterVar((0, 1), tirx.Var("thread", "int32"), tirx.IterVar.ThreadIndex, "threadIdx.x")
    return tirx.For(tirx.Var("thread", "int32"), 0, 1, tirx.ForKind.THREAD_BINDING, serial, thread)


def _serial(loop: tirx.For) -> tirx.For | None:
    if loop.kind != tirx.ForKind.PARALLEL:
        return None
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
