"""Lets CUDA kernels begin while the one before them ends (programmatic dependent launch)."""

from __future__ import annotations

import tilelang.language as T
from tilelang import tvm

_KERNEL_BODY = "tilelang_root"  # how TileLang names the block of statements under a T.Kernel


def awaiting_previous_kernel(function: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """``function`` with each of its kernels waiting, first of all, until what earlier kernels wrote can be read.

    A kernel that waits may be launched before the one before it ends, so that setting up its blocks, barriers
    and descriptors costs no time. It waits for all kernels of the stream: the one before could not end otherwise.
    """

    def wait_first(statement: tvm.tirx.Stmt) -> tvm.tirx.Stmt | None:
        if not isinstance(statement, tvm.tirx.SBlock) or statement.name_hint != _KERNEL_BODY:
            return None
        body = tvm.tirx.SeqStmt([tvm.tirx.Evaluate(T.pdl_sync()), statement.body])
        return tvm.tirx.SBlock(
            statement.iter_vars,
            statement.reads,
            statement.writes,
            statement.name_hint,
            body,
            statement.init,
            statement.alloc_buffers,
            statement.match_buffers,
            statement.annotations,
        )

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, wait_first, ["tirx.SBlock"])
    return function.with_body(body)
