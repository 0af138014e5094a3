"""Lets a matrix product read a transposed right operand where it lies, instead of transposing it at every call."""

from __future__ import annotations

from itertools import zip_longest

import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import permuted_axes
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="TransposedProducts")
class TransposedProducts:
    """Replaces ``matmul(x, permute_dims(w))``, where the last two dimensions are swapped, by one function of x and w.

    ``x[..., M, K]`` or ``x[K]`` times ``w[..., N, K]``; other dimensions broadcast. TVM's ``FuseTransposeMatmul`` does
    the same, but fails where x and w are one tensor, as in a Gram matrix.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such products reading ``w``; transpositions that nothing else uses become dead code."""
        return rewritten(module, _Fusing)


@mutator
class _Fusing(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.matmul"):
            return call
        x, transposed = call.args
        w = self._untransposed(transposed)
        if w is None:
            return call
        return self.builder_.call_te(_product, x, w, call.struct_info.dtype, primfunc_name_hint="NT_matmul")

    def _untransposed(self, operand: relax.Expr) -> relax.Expr | None:
        """What ``operand`` is with its last two dimensions swapped; ``None`` if it is not made so."""
        made = self.lookup_binding(operand) if isinstance(operand, relax.Var) else None
        if not (isinstance(made, relax.Call) and isinstance(made.op, Op) and made.op.name == "relax.permute_dims"):
            return None
        source = made.args[0]
        rank = source.struct_info.ndim
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        return source if rank >= 2 and permuted_axes(made) == swapped else None


def _product(x: te.Tensor, w: te.Tensor, dtype: str) -> te.Tensor:
    """``out[..., m, n] = sum_k x[..., m, k] w[..., n, k]``, summed in ``dtype``, which is that of the result."""
    k = te.reduce_axis((0, x.shape[-1]), name="k")

    def element(*index: tirx.PrimExpr) -> tirx.PrimExpr:
        *batch, column = index
        row = [batch.pop()] if len(x.shape) > 1 else []
        left = x(*_broadcast(batch, x.shape[:-2]), *row, k)
        right = w(*_broadcast(batch, w.shape[:-2]), column, k)
        return te.sum(left.astype(dtype) * right.astype(dtype), axis=k)

    pairs = zip_longest(reversed(x.shape[:-2]), reversed(w.shape[:-2]), fillvalue=1)
    batch = [other if _is_one(size) else size for size, other in pairs][::-1]
    return te.compute((*batch, *x.shape[-2:-1], w.shape[-2]), element, name="NT_matmul")


def _broadcast(index: list[tirx.PrimExpr], sizes: list[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
    """``index`` into an operand with the leading dimensions ``sizes``, by NumPy's rules."""
    aligned = index[len(index) - len(sizes) :]
    return [0 if _is_one(size) else i for i, size in zip(aligned, sizes, strict=True)]


def _is_one(size: tirx.PrimExpr | int) -> bool:
    return isinstance(size, int | tirx.IntImm) and int(size) == 1
