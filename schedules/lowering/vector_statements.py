"""Statements of vectors in a scope of their own, for TVM's CUDA code.

TVM 0.25 holds a vector that it takes apart, as to convert it, in a variable, and takes the same variable for the same
text in the same scope: ``*(uint4*)(sums + 0)`` is what it was before ``sums`` was written again. Where a loop is
written out, its second iteration gets what the first has computed.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform, post_order_visit

from tkc.schedules.lowering.vector_selections import lanes_of
from tkc.schedules.target import is_gpu_code


@tvm.transform.module_pass(opt_level=0, name="ScopeVectorStatements")
class ScopeVectorStatements:
    """Puts each statement that reads vectors of memory that its function writes into a scope, in functions for a GPU
    that nothing simplifies any more."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such scopes, each that of a condition that always holds."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func):
                result[variable] = func.with_body(_scoped(func.body))
        return result


def _scoped(body: tirx.Stmt) -> tirx.Stmt:
    written: set[tirx.Var] = set()

    def note(node: object) -> None:
        if isinstance(node, tirx.BufferStore):
            written.add(node.buffer.data)

    post_order_visit(body, note)

    def scope(statement: tirx.Stmt) -> tirx.Stmt | None:
        if isinstance(statement.value, tirx.BufferLoad) or not _reads_vectors(statement.value, written):
            return None  # a copy takes nothing apart
        return tirx.IfThenElse(tirx.IntImm("bool", 1), statement, None)

    return ir_transform(body, None, scope, ["tirx.BufferStore", "tirx.Evaluate"])


def _reads_vectors(value: tirx.PrimExpr, written: set[tirx.Var]) -> bool:
    found = False

    def look(node: object) -> None:
        nonlocal found
        found |= isinstance(node, tirx.BufferLoad) and lanes_of(node) > 1 and node.buffer.data in written

    post_order_visit(value, look)
    return found
