"""What schedules a function no rule fits: it runs as written, on the CPU, or, on a GPU, in one thread.

A loop that its author made parallel has one thread for each iteration there, or a block of threads, if the loop inside
says that each of its iterations may have one.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.contracts import EACH_IN_A_THREAD
from tkc.schedules.blocks import launches_threads, top_level_statements


def as_written(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` unchanged, for the CPU: whatever its author made parallel already is."""
    return func


def in_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with every statement that launches no GPU threads in a single one, or in one for each iteration."""
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
    """In one thread, or, of a parallel loop, in one thread for each iteration, which is a block of its own."""
    if isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL:
        loop, body, index = statement, statement.body, "blockIdx.x"
    else:
        loop, body, index = (
            tirx.For(tirx.Var("thread", "int32"), 0, 1, tirx.ForKind.SERIAL, statement),
            statement,
            "threadIdx.x",
        )
    serial = ir_transform(body, None, _serial, ["tirx.For"])
    if isinstance(serial, tirx.For) and EACH_IN_A_THREAD in serial.annotations and index == "blockIdx.x":
        serial = _bound(serial, serial.body, "threadIdx.x")
    return _bound(loop, serial, index)


def _bound(loop: tirx.For, body: tirx.Stmt, index: str) -> tirx.For:
    """``loop`` with its iterations, each of which is ``body``, in blocks or threads of their own."""
    variable = tirx.Var("thread", loop.loop_var.dtype)
    thread = tirx.IterVar((loop.min, loop.extent), variable, tirx.IterVar.ThreadIndex, index)
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.THREAD_BINDING, body, thread)


def _serial(loop: tirx.For) -> tirx.For | None:
    """The iterations one by one. Vectors may be longer there than any that CUDA has."""
    if loop.kind not in (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED):
        return None
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
