"""Products of batches of one matrix, such as ``einsum`` makes of products with a weight, become products with it."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import arith, relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import SHAPE_CHANGES, has_known_shape, permuted_axes, shape, static
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="WeightProducts")
class WeightProducts:
    """Replaces a product of ``[1, m, k]`` and ``[1, k, n]``, the second a view of a tensor without axes of one.

    PyTorch writes ``einsum("bse,fe->bsf", x, w)`` as such a product, with the axes of ``x`` that it keeps folded into
    one, and axes of one that are permuted before and after. It becomes ``x @ w.T``: the rows keep the axes that they
    had, the weight is a matrix, and what is left of the views is that which changes the order.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with products with weights."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._products: set[relax.Var] = set()
        self._analyzer = arith.Analyzer()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if _is(call, "relax.matmul"):
            return self._product(call)
        if _is(call, "relax.reshape") and (permuted := self._call(call.args[0], "relax.permute_dims")) is not None:
            source = self._through_shapes(permuted.args[0])
            if source in self._products and has_known_shape(call):
                return self._reshaped(self._without_ones(permuted, source), shape(call))
        return call

    def _product(self, call: relax.Call) -> relax.Expr:
        a, b = call.args
        if not all(map(has_known_shape, (call, a, b))) or not 2 < a.struct_info.ndim == b.struct_info.ndim:
            return call
        if any(static(size) != 1 for operand in (a, b) for size in shape(operand)[:-2]):
            return call
        weight = self._weight(b)
        if weight is None:
            return call
        rows = self._dense(a)
        if rows.struct_info.ndim < 2 or not self._same(shape(rows)[-1:], shape(a)[-1:]):
            rows = self._reshaped(a, shape(a)[-2:])
        product = self.builder_.emit(op.matmul(rows, weight, call.attrs.out_dtype))
        self._products.add(product)
        return op.reshape(product, shape(call))

    def _weight(self, b: relax.Expr) -> relax.Expr | None:
        """``b`` as a matrix; ``None`` where the tensor that it is a view of has axes of one, as a batch may be."""
        view = self._through_shapes(b)
        permuted = self._call(view, "relax.permute_dims")
        source = view if permuted is None else self._through_shapes(permuted.args[0])
        if not has_known_shape(source) or any(static(size) in (None, 1) for size in shape(source)):
            return None
        return self._reshaped(self._dense(b), shape(b)[-2:])

    def _dense(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` is a change of shape of, without the axes of one that were permuted."""
        view = self._through_shapes(expr)
        permuted = self._call(view, "relax.permute_dims")
        if permuted is None or not all(map(has_known_shape, (view, permuted.args[0]))):
            return view
        return self._without_ones(permuted, self._through_shapes(permuted.args[0]))

    def _without_ones(self, permuted: relax.Call, source: relax.Expr) -> relax.Expr:
        """``permuted``, whose operand is ``source`` of another shape, without axes of one."""
        sizes = shape(permuted.args[0])
        kept = [axis for axis, size in enumerate(sizes) if static(size) != 1]
        dense = self._reshaped(source, [sizes[axis] for axis in kept])
        order = [kept.index(axis) for axis in permuted_axes(permuted) if axis in kept]
        return dense if order == sorted(order) else self.builder_.emit(op.permute_dims(dense, order))

    def _reshaped(self, expr: relax.Expr, sizes: Sequence[tirx.PrimExpr]) -> relax.Expr:
        return expr if self._same(shape(expr), sizes) else self.builder_.emit(op.reshape(expr, sizes))

    def _same(self, left: Sequence[tirx.PrimExpr], right: Sequence[tirx.PrimExpr]) -> bool:
        return len(left) == len(right) and all(map(self._analyzer.can_prove_equal, left, right))

    def _through_shapes(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` before changes of its shape."""
        while (call := self._call(expr, *SHAPE_CHANGES)) is not None and has_known_shape(call.args[0]):
            expr = call.args[0]
        return expr

    def _call(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if _is(value, *names) else None


def _is(expr: object, *names: str) -> bool:
    return isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in names
