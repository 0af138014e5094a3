"""Variables of expressions as stores to local memory, which LLVM keeps in registers.

TVM's code generator for LLVM gives each variable's value to its simplifier, which puts it in place of the variable: an
expression with variables in variables takes exponential time.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform, substitute

_CONDITIONAL = Op.get("tirx.if_then_else")


@tvm.transform.module_pass(opt_level=0, name="StoredVariables")
class StoredVariables:
    """Stores what expressions of host functions bind to variables, in front of the statement that has them.

    What is computed on a condition only stays where it is.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such stores in every function that LLVM compiles."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            target = (func.attrs or {}).get("target")
            if isinstance(func, tirx.PrimFunc) and target is not None and target.kind.name == "llvm":
                result[variable] = func.with_body(ir_transform(func.body, None, _stored, ["tirx.BufferStore"]))
        return result


def _stored(store: tirx.BufferStore) -> tirx.Stmt | None:
    before: list[tirx.Stmt] = []
    value = _without_variables(store.value, before)
    return tirx.SeqStmt([*before, tirx.BufferStore(store.buffer, value, store.indices)]) if before else None


def _without_variables(expr: tirx.PrimExpr, before: list[tirx.Stmt]) -> tirx.PrimExpr:
    """``expr`` with loads of what is stored for it; the stores are added to ``before``, in order."""

    def replaced(node: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(node, tirx.Call):
            return node if node.op.same_as(_CONDITIONAL) else None
        value = _without_variables(node.value, before)
        place, index = _memory(node.var)
        before.extend([tirx.AllocBuffer(place), tirx.BufferStore(place, value, index)])
        return _without_variables(substitute(node.body, {node.var: tirx.BufferLoad(place, index)}), before)

    return ir_transform(tirx.Evaluate(expr), replaced, None, ["tirx.Let", "tirx.Call"]).value


def _memory(variable: tirx.Var) -> tuple[tirx.Buffer, list[tirx.PrimExpr]]:
    """A buffer as large as ``variable``, and the index of all of it."""
    dtype = tvm.DataType(variable.dtype)
    zero = tirx.const(0, "int32")
    index = zero if dtype.lanes == 1 else tirx.Ramp(zero, tirx.const(1, "int32"), dtype.lanes)
    return tirx.decl_buffer((dtype.lanes,), dtype.with_lanes(1), variable.name), [index]
