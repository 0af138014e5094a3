"""Has PyTorch's library multiply matrices of 8-bit integers on the CPU."""

from __future__ import annotations

import json
from math import prod

import tvm
from tvm import arith, relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import MULTIPLY_INTEGERS
from tkc.passes.graph.bindings import dtype, has_known_shape, shape, static
from tkc.passes.graph.integer_codes import Codes, codes_of, constants
from tkc.passes.graph.library_calls import counted
from tkc.passes.graph.rewriting import rewritten
from tkc.passes.graph.updates import constant_parameters

LEAST_PRODUCTS = 1 << 20
LEAST_PRODUCTS_OF_MATRIX = 1 << 18
"""Multiplications of all matrices, and of each of a batch, under which generated code is faster than a call, with the
25 µs that it takes besides, and 5 for each matrix. Symbolic sizes count as 64."""


@tvm.transform.module_pass(opt_level=0, name="LibraryIntegerProducts")
class LibraryIntegerProducts:
    """Replaces matmuls of 8-bit codes less their zero points by calls of PyTorch's, which sum in int32.

    In graphs they are matmuls of int32, or of float32 where these hold every sum; either way the results are whole
    numbers, which the call gives exactly (``tkc/runtime/integer_products.py``).
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._analyzer = arith.Analyzer()
        self._constants: set[relax.Var] = set()
        self._sums: dict[relax.Expr, relax.Expr] = {}

    def visit_function_(self, function: relax.Function) -> relax.Function:
        self._constants = constant_parameters(function)
        return super().visit_function_(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not isinstance(call.op, Op):
            return call
        if call.op.name == "relax.astype" and dtype(call) == "int32":
            return self._sums.get(self._source(call.args[0]), call)
        if call.op.name != "relax.matmul" or dtype(call) not in ("int32", "float32"):
            return call
        left, right = (codes_of(arg, self.lookup_binding, axis) for arg, axis in zip(call.args, (-2, -1), strict=True))
        if left is None or right is None or not self._is_worth_a_call(call, left, right):
            return call
        return self._called(call, left, right)

    def _source(self, expr: relax.Expr) -> relax.Expr:
        """The call that ``expr`` holds."""
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return expr if value is None else value

    def _called(self, call: relax.Call, left: Codes, right: Codes) -> relax.Expr:
        zeros = [None if isinstance(each.zero, relax.Expr) else each.zero for each in (left, right)]
        description = {
            "zeros": zeros,
            "transposed": right.transposed,
            "is_constant": constants([right.tensor, right.zero], self._constants),
        }
        rows = (
            self.builder_.emit(op.permute_dims(left.tensor, _swapped(left.tensor))) if left.transposed else left.tensor
        )
        tensors = [each.zero for each in (left, right) if isinstance(each.zero, relax.Expr)]
        total = self.builder_.emit(
            relax.call_pure_packed(
                MULTIPLY_INTEGERS,
                relax.StringImm(json.dumps(description)),
                rows,
                right.tensor,
                *tensors,
                sinfo_args=[relax.TensorStructInfo(shape(call), "int32")],
            )
        )
        if dtype(call) == "int32":
            return total
        wide = op.astype(total, "float32")
        self._sums[wide] = total
        return wide

    def _is_worth_a_call(self, call: relax.Call, left: Codes, right: Codes) -> bool:
        if not all(map(has_known_shape, (call, *call.args))) or min(arg.struct_info.ndim for arg in call.args) < 2:
            return False
        depths = shape(call.args[0])[-1], shape(call.args[1])[-2]
        if not self._analyzer.can_prove_equal(*depths):
            return False
        *batch, rows, columns = map(counted, shape(call))
        each = rows * columns * counted(depths[0])
        if any(static(size) != 1 for size in shape(right.tensor)[:-2]):
            return each >= LEAST_PRODUCTS_OF_MATRIX
        return each * prod(batch) >= LEAST_PRODUCTS


def _swapped(tensor: relax.Expr) -> list[int]:
    rank = tensor.struct_info.ndim
    return [*range(rank - 2), rank - 1, rank - 2]
