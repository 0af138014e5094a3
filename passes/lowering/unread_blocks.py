"""What fused functions compute that nothing reads: parts of a split that the model leaves unused, and no elements.

``FuseTIR`` makes of such a result a tensor of the function's own, which no schedule for a GPU has a place for.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform, post_order_visit

from tkc.passes.lowering.block_parts import with_parts


@tvm.transform.module_pass(opt_level=0, name="RemoveUnreadBlocks")
class RemoveUnreadBlocks:
    """Removes statements that write a tensor of the function's own which no statement reads."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without such statements in its TensorIR functions."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc) and isinstance(func.body, tirx.SBlockRealize):
                realize = _without_empty_reads(func.body)
                kept = _kept(realize.block)
                if len(kept) < len(_statements(realize.block.body)):
                    result[variable] = func.with_body(_with_statements(realize, kept))
        return result


def _without_empty_reads(realize: tirx.SBlockRealize) -> tirx.SBlockRealize:
    """``realize`` that reads no tensor of its own without elements: such a read stands where it is never executed."""
    empty = {buffer for buffer in realize.block.alloc_buffers if any(_is_zero(size) for size in buffer.shape)}
    if not empty:
        return realize

    def replaced(node: tirx.BufferLoad | tirx.SBlock) -> tirx.PrimExpr | tirx.SBlock | None:
        if isinstance(node, tirx.BufferLoad):
            return tirx.const(0, node.dtype) if node.buffer in empty else None
        reads = [region for region in node.reads if region.buffer not in empty]
        return None if len(reads) == len(node.reads) else with_parts(node, reads=reads)

    body = ir_transform(realize.block.body, None, replaced, ["tirx.BufferLoad", "tirx.SBlock"])
    return tirx.SBlockRealize(realize.iter_values, realize.predicate, with_parts(realize.block, body=body))


def _is_zero(size: tirx.PrimExpr) -> bool:
    return isinstance(size, tirx.IntImm) and size.value == 0


def _statements(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _kept(root: tirx.SBlock) -> list[tirx.Stmt]:
    """The statements of ``root`` that a parameter, or another of them, needs; all where one is a call."""
    own = set(root.alloc_buffers)
    found = [_accesses(statement) for statement in _statements(root.body)]
    if any(written is None for written, _ in found):
        return _statements(root.body)
    kept: list[tirx.Stmt] = []
    read: set[tirx.Buffer] = set()
    for statement, (written, needed) in zip(reversed(_statements(root.body)), reversed(found), strict=True):
        if written and written <= own and not written & read:
            continue
        kept.append(statement)
        read |= needed
    return kept[::-1]


def _accesses(statement: tirx.Stmt) -> tuple[set[tirx.Buffer] | None, set[tirx.Buffer]]:
    """What ``statement`` writes, and what it reads; ``None`` for the former if it calls what may use any memory."""
    written: set[tirx.Buffer] = set()
    read: set[tirx.Buffer] = set()
    calls = False

    def visit(node: object) -> None:
        nonlocal calls
        if isinstance(node, tirx.BufferStore):
            written.add(node.buffer)
        elif isinstance(node, tirx.BufferLoad):
            read.add(node.buffer)
        elif isinstance(node, tirx.Evaluate):
            calls = True

    post_order_visit(statement, visit)
    return None if calls else written, read


def _with_statements(realize: tirx.SBlockRealize, kept: list[tirx.Stmt]) -> tirx.SBlockRealize:
    root = realize.block
    used = set[tirx.Buffer]().union(*(part for each in kept for part in _accesses(each) if part is not None))
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    block = with_parts(root, body=body, alloc_buffers=[buffer for buffer in root.alloc_buffers if buffer in used])
    return tirx.SBlockRealize(realize.iter_values, realize.predicate, block)
