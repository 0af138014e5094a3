"""Has PyTorch's library multiply matrices of bfloat16, on CPUs that have instructions for it."""

from __future__ import annotations

import json
from math import prod

import tvm
from tvm import arith, relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import MULTIPLY_BFLOAT16
from tkc.passes.graph.bindings import dtype, has_known_shape, permuted_axes, shape, static
from tkc.passes.graph.library_calls import counted
from tkc.passes.graph.rewriting import rewritten

LEAST_PRODUCTS = 1 << 19
"""Multiplications, under which generated code is faster than a call, with the 20 µs that it takes besides. Symbolic
sizes count as 64. A single row is read as fast by generated code, whatever the matrix."""


@tvm.transform.module_pass(opt_level=0, name="LibraryBfloat16Products")
class LibraryBfloat16Products:
    """Replaces matmuls of bfloat16 by calls of PyTorch's, which sum in float32 and round once, as generated code does.

    The right operand may be a transpose, which is not stored.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._analyzer = arith.Analyzer()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.matmul") or not self._is_worth_a_call(call):
            return call
        left, right = call.args
        source = self._transposed(right)
        return relax.call_pure_packed(
            MULTIPLY_BFLOAT16,
            relax.StringImm(json.dumps({"transposed": source is not None})),
            left,
            right if source is None else source,
            sinfo_args=[call.struct_info],
        )

    def _transposed(self, right: relax.Expr) -> relax.Expr | None:
        """The matrices that ``right`` is the transposes of, if it is."""
        made = self.lookup_binding(right) if isinstance(right, relax.Var) else None
        if not (isinstance(made, relax.Call) and isinstance(made.op, Op) and made.op.name == "relax.permute_dims"):
            return None
        rank = right.struct_info.ndim
        is_transpose = permuted_axes(made) == [*range(rank - 2), rank - 1, rank - 2]
        return made.args[0] if is_transpose else None

    def _is_worth_a_call(self, call: relax.Call) -> bool:
        if any(dtype(each) != "bfloat16" or not has_known_shape(each) for each in (call, *call.args)):
            return False
        if min(arg.struct_info.ndim for arg in call.args) < 2:
            return False
        *batch, rows, columns = shape(call)
        depths = shape(call.args[0])[-1], shape(call.args[1])[-2]
        if not self._analyzer.can_prove_equal(*depths):
            return False
        has_matrices = call.args[1].struct_info.ndim > 2
        is_one_row = static(rows) == 1 and (has_matrices or all(static(size) == 1 for size in batch))
        return not is_one_row and prod(map(counted, (*batch, rows, columns, depths[0]))) >= LEAST_PRODUCTS
