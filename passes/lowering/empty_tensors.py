"""Computes nothing where a tensor has no elements, and gives reductions over nothing the value that they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.kernels import reducers
from tkc.passes.graph.rewriting import rewritten

_OF_NOTHING: dict[str, Callable[[relax.Call], float]] = {
    "relax.matmul": lambda _: 0,
    "relax.sum": lambda _: 0,
    "relax.prod": lambda _: 1,
    "relax.mean": lambda _: math.nan,
    "relax.max": lambda call: reducers.lowest(call.struct_info.dtype).value,
    "relax.min": lambda call: reducers.highest(call.struct_info.dtype).value,
    "relax.nn.pad": lambda call: float(call.attrs.pad_value),
}
"""What an operator gives if there is nothing to compute it of. Nothing's extrema are those that a loop begins with."""

_UNCHANGED = ("relax.scatter_elements", "relax.scatter_nd", "relax.index_put")
"""Operators that change some elements of their first operand."""


@tvm.transform.module_pass(opt_level=0, name="FoldEmptyTensors")
class FoldEmptyTensors:
    """Replaces what has a dimension of 0, or sums over one, by a tensor filled with a constant.

    TensorIR's loops over such a dimension never run: reductions would leave their result as it lay in memory, and
    passes that divide by an extent would fail.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which operators have operands and results with elements."""
        return rewritten(module, _Folding)


@mutator
class _Folding(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        sinfo = call.struct_info
        if not (isinstance(call.op, Op) and isinstance(sinfo, relax.TensorStructInfo) and sinfo.shape is not None):
            return call
        if _is_empty(call):
            return call if call.op.name == "relax.full" else _filled(0, sinfo)
        if call.op.name in _OF_NOTHING and any(map(_is_empty, call.args)):
            return _filled(_OF_NOTHING[call.op.name](call), sinfo)
        if call.op.name in _UNCHANGED and any(map(_is_empty, _leaves(call.args[1:]))):
            return call.args[0]
        if call.op.name == "relax.concat" and isinstance(call.args[0], relax.Tuple):
            parts = [part for part in call.args[0].fields if not _is_empty(part)]
            return parts[0] if len(parts) == 1 else relax.op.concat(parts, call.attrs.axis)
        return call


@tvm.transform.module_pass(opt_level=0, name="AllocateEmptyConstants")
class AllocateEmptyConstants:
    """Replaces constants without elements by allocations: a saved module with such a constant cannot be read."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which constants have elements."""
        return rewritten(module, _Allocating)


@mutator
class _Allocating(PyExprMutator):
    def visit_constant_(self, constant: relax.Constant) -> relax.Expr:
        if not _is_empty(constant):
            return constant
        sinfo = constant.struct_info
        return self.builder_.emit(relax.op.builtin.alloc_tensor(sinfo.shape, sinfo.dtype, 0))


def _is_empty(expr: relax.Expr) -> bool:
    """Whether ``expr`` is a tensor with a dimension that is known to be 0."""
    sinfo = expr.struct_info
    sizes = sinfo.shape if isinstance(sinfo, relax.TensorStructInfo) else None
    return isinstance(sizes, relax.ShapeExpr) and any(isinstance(n, tirx.IntImm) and n == 0 for n in sizes)


def _leaves(exprs: Iterable[relax.Expr]) -> Iterator[relax.Expr]:
    for expr in exprs:
        yield from expr.fields if isinstance(expr, relax.Tuple) else (expr,)


def _filled(value: float, sinfo: relax.TensorStructInfo) -> relax.Expr:
    return relax.op.full(sinfo.shape, relax.const(value, sinfo.dtype), sinfo.dtype)
