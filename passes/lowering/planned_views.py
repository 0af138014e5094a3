"""Writes views that TVM's dispatch of scans takes as reshapes, which its memory planning knows to share memory."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

_CALL = Op.get("relax.call_pure_packed")
_VIEW = "vm.builtin.reshape"


@tvm.transform.module_pass(opt_level=0, name="PlannedViews")
class PlannedViews:
    """Replaces calls of ``vm.builtin.reshape`` by ``reshape``.

    ``DispatchSortScan`` sees a running sum along the last axis, on the GPU, as one of a matrix, by such calls before
    and after it. ``StaticPlanBlockMemory`` of TVM 0.25 takes them for calls that make tensors of their own: it gave
    away the memory of the sum once the call was over, while the view was still to be read.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with reshapes."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        packed = call.op == _CALL and call.args[0].global_symbol == _VIEW
        return op.reshape(*call.args[1:]) if packed else call
