"""Orders what threads read from shared memory before what the GPU's copy engine (TMA) writes there next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilelang.language as T
from tilelang import tvm

_ADDRESS = tvm.ir.Op.get("tirx.tvm_access_ptr")
_ARRIVAL = tvm.ir.Op.get("tirx.ptx_arrive_barrier")
_COPY = tvm.ir.Op.get("tl.tma_load")
_FENCE = tvm.ir.Op.get("tl.fence_proxy_async")
_MATRIX_LOADS = (tvm.ir.Op.get("tl.ptx_ldmatrix"), tvm.ir.Op.get("tirx.ptx_ldmatrix"))


def fenced_arrivals(function: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """The device ``function`` with a fence where threads arrive at a barrier after reading what was copied for them.

    The arrival says that the memory may be written again. The copy engine writes by another path than threads read
    (the asynchronous proxy of the PTX ISA), and an arrival alone does not order the two: a load that was issued before
    it may find what is copied after it. TileLang leaves the fence out. Products that read by the engine's path
    themselves need none, since they are waited for.
    """
    copied = {memory for call in _calls(function.body, _COPY) for memory in _addressed(call)}
    if not copied:
        return function

    def fence(sequence: tvm.tirx.SeqStmt) -> tvm.tirx.SeqStmt | None:
        ordered: list[tvm.tirx.Stmt] = []
        reads = False  # since the last fence
        for statement in sequence.seq:
            if reads and _calls(statement, _ARRIVAL):
                ordered.append(tvm.tirx.Evaluate(T.fence_proxy_async()))
                reads = False
            reads = not _is_call(statement, _FENCE) and (reads or not copied.isdisjoint(_read(statement)))
            ordered.append(statement)
        return tvm.tirx.SeqStmt(ordered) if len(ordered) > len(sequence.seq) else None

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, fence, ["tirx.SeqStmt"])
    return function.with_body(body)


def _read(statement: tvm.tirx.Stmt) -> set[tvm.tirx.Var]:
    """The memory that threads load from, element by element or as matrices."""
    loads = _nodes(statement, lambda node: isinstance(node, tvm.tirx.BufferLoad))
    matrix_loads = [call for op in _MATRIX_LOADS for call in _calls(statement, op)]
    return {load.buffer.data for load in loads} | {memory for call in matrix_loads for memory in _addressed(call)}


def _addressed(call: tvm.tirx.Call) -> set[tvm.tirx.Var]:
    return {address.args[1] for address in _calls(call, _ADDRESS)}


def _calls(tree: tvm.tirx.Stmt | tvm.tirx.PrimExpr, op: tvm.ir.Op) -> list[tvm.tirx.Call]:
    return _nodes(tree, lambda node: isinstance(node, tvm.tirx.Call) and node.op.same_as(op))


def _is_call(statement: tvm.tirx.Stmt, op: tvm.ir.Op) -> bool:
    call = statement.value if isinstance(statement, tvm.tirx.Evaluate) else None
    return isinstance(call, tvm.tirx.Call) and call.op.same_as(op)


def _nodes(tree: tvm.tirx.Stmt | tvm.tirx.PrimExpr, wanted: Callable[[object], bool]) -> list[Any]:
    found: list[Any] = []
    tvm.tirx.stmt_functor.post_order_visit(tree, lambda node: found.append(node) if wanted(node) else None)
    return found
