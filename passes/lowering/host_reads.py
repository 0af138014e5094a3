"""Waits for a call's kernels before the host reads a tensor that they compute."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import AWAIT
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="HostReads")
class HostReads:
    """Has sizes that are read from tensors, and conditions of ``If``, wait for the caller's stream.

    TVM copies both to the host on CUDA's default stream, which does not wait for PyTorch's other streams: a call
    on one of these would read what the memory held before. Runs when every allocation is one of storage: what waits
    gives the tensor itself, and memory planning would take that for another.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` whose reads on the host wait."""
        return rewritten(module, _Waiting)


@mutator
class _Waiting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != Op.get("relax.tensor_to_shape"):
            return call
        return relax.Call(call.op, [self._awaited(call.args[0])], call.attrs, call.sinfo_args)

    def visit_if_(self, branch: relax.If) -> relax.Expr:
        condition = self._awaited(self.visit_expr(branch.cond))
        return relax.If(condition, self.visit_expr(branch.true_branch), self.visit_expr(branch.false_branch))

    def _awaited(self, tensor: relax.Expr) -> relax.Var:
        call = relax.Call(relax.ExternFunc(AWAIT), [tensor], None, [tensor.struct_info])
        return self.builder_.emit(call)
