"""Lets matrix products of 16-bit numbers sum in float32, as PyTorch and tensor cores do."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

_LOW_PRECISION = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="WidenProducts")
class WidenProducts:
    """Replaces a ``matmul`` of 16-bit operands and result by one with a float32 result and a cast.

    TVM sums in the dtype of the result, which over thousands of terms loses most of what 16 bits hold.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with wide products."""
        return rewritten(module, _Widening)


@mutator
class _Widening(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.matmul"):
            return call
        dtype = call.struct_info.dtype
        if dtype not in _LOW_PRECISION:
            return call
        wide = self.builder_.emit(relax.op.matmul(*call.args, out_dtype="float32"))
        return relax.op.astype(wide, dtype)
