"""Has the runtime multiply by the weights of linear layers on the CPU, which it packs once."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import dtype, has_known_shape, permuted_axes, shape, static
from tkc.passes.graph.product_call import product_call
from tkc.passes.graph.rewriting import rewritten
from tkc.passes.graph.updates import constant_parameters

LEAST_WEIGHTS = 1 << 12
"""Elements of a weight, under which generated code is fused with what is around it."""


@tvm.transform.module_pass(opt_level=0, name="LinearProducts")
class LinearProducts:
    """Replaces float32 products ``x [..., k] @ w`` with a constant matrix by calls of the runtime's.

    ``w`` is a weight ``[k, n]``, or the transpose of one that is ``[n, k]``.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._weights: set[relax.Var] = set()

    def visit_function_(self, function: relax.Function) -> relax.Function:
        self._weights = constant_parameters(function)
        return super().visit_function_(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.matmul"):
            return call
        x, weight = call.args
        if any(dtype(each) != "float32" or not has_known_shape(each) for each in (x, weight, call)):
            return call
        if weight.struct_info.ndim != 2:
            return call
        source, transposed = self._source(weight)
        if source is None:
            return call
        k, n = map(static, shape(source))
        if k is None or n is None or k * n < LEAST_WEIGHTS:
            return call
        return product_call(x, source, call.struct_info, transposed=transposed)

    def _source(self, weight: relax.Expr) -> tuple[relax.Expr | None, bool]:
        """The weight of the model that ``weight`` is, and whether as ``[k, n]``; ``None`` where it is none."""
        if self._is_constant(weight):
            return weight, True
        made = self.lookup_binding(weight) if isinstance(weight, relax.Var) else None
        if isinstance(made, relax.Call) and isinstance(made.op, Op) and made.op.name == "relax.permute_dims":
            source = made.args[0]
            if permuted_axes(made) == [1, 0] and self._is_constant(source):
                return source, False
        return None, False

    def _is_constant(self, expr: relax.Expr) -> bool:
        return isinstance(expr, relax.Constant) or expr in self._weights
