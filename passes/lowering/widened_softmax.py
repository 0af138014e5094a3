"""Softmax of 16-bit numbers that the model widens, as functions that widen what they read."""

from __future__ import annotations

import tvm
from tvm import relax, te, topi
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import OP_PATTERN, REDUCTION_PATTERN
from tkc.passes.graph.bindings import has_known_shape, is_call
from tkc.passes.graph.rewriting import rewritten_for_gpu

_NARROW = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="WidenedSoftmax")
class WidenedSoftmax:
    """Replaces ``softmax(astype(x, "float32"))``, for a GPU, by one function of ``x``.

    ``FuseOps`` fuses nothing into what a softmax reads, and the wide numbers would go through memory, twice as many
    bytes as the narrow ones.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such functions."""
        return rewritten_for_gpu(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_call(call, "relax.nn.softmax") or call.struct_info.dtype != "float32" or not has_known_shape(call):
            return call
        axis = int(call.attrs.axis) % call.struct_info.ndim
        wide = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        if wide is None or not is_call(wide, "relax.astype"):
            return call
        narrow = wide.args[0]
        if narrow.struct_info.dtype not in _NARROW or not has_known_shape(narrow):
            return call

        def softmax(x: te.Tensor) -> te.Tensor:
            return topi.nn.softmax(topi.cast(x, "float32"), axis)

        attributes = {OP_PATTERN: REDUCTION_PATTERN}
        return self.builder_.call_te(softmax, narrow, primfunc_name_hint="softmax", primfunc_attrs=attributes)
