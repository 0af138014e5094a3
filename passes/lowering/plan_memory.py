"""Decides which tensors of a function share memory."""

from __future__ import annotations

import math

import tvm
from tvm import arith, relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tkc.passes.graph.branches import has_branches
from tkc.passes.graph.memory import checked
from tkc.passes.graph.rewriting import rewritten

_ALLOC_TENSOR = Op.get("relax.builtin.alloc_tensor")
_COPY = relax.ExternFunc("vm.builtin.copy")
_MOST_BYTES = 1 << 28


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """TVM's ``StaticPlanBlockMemory``, for modules without branches and with one name for each tensor.

    It reuses memory that one branch allocates in the other branch, where it is never allocated: the program writes to
    whatever address it finds. Without a plan, each tensor has memory of its own, which is freed after its last use.

    And it does not know that the result of a ``match_cast``, or of a check of the runtime, is its argument: it gave
    away the memory of a tensor after the last use of its first name. What follows reads the first name, therefore.

    Where ``min(n, 1000000000)`` bounds a size, as it does in slices up to "every element", it allocates as much in each
    call. A size whose bound makes a tensor larger than 256 MiB is a variable, which has none.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with its memory planned, or as it is."""
        functions = (function for function in module.functions.values() if isinstance(function, relax.Function))
        if any(has_branches(function) for function in functions):
            return module
        return relax.transform.StaticPlanBlockMemory()(rewritten(rewritten(module, _FirstNames), _WithoutLargeBounds))


@mutator
class _FirstNames(PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        super().visit_match_cast_(binding)
        value = self.visit_expr(binding.value)
        if isinstance(value, relax.Var):
            self.set_var_remap(binding.var.vid, value)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        value = checked(binding.value)
        if isinstance(value, relax.Var):
            self.set_var_remap(binding.var.vid, self.visit_expr(value))


@mutator
class _WithoutLargeBounds(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._named: list[tuple[tirx.PrimExpr, tirx.Var]] = []

    def visit_function_(self, function: relax.Function) -> relax.Expr:
        self._named.clear()
        return super().visit_function_(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (
            isinstance(call, relax.Call) and call.op == _ALLOC_TENSOR and isinstance(call.args[0], relax.ShapeExpr)
        ):
            return call
        shape, dtype, *others = call.args
        bounds = list(map(_bound, shape.values))
        known = [bound for bound in bounds if bound is not None]
        if all(isinstance(size, tirx.IntImm) for size in shape.values):
            return call
        if math.prod(known) * tvm.DataType(dtype.value).itemsize <= _MOST_BYTES:
            return call
        pairs = zip(shape.values, bounds, strict=True)
        sizes = [size if bound is None else self._unbounded(size) for size, bound in pairs]
        return relax.Call(call.op, [relax.ShapeExpr(sizes), dtype, *others], call.attrs)

    def _unbounded(self, size: tirx.PrimExpr) -> tirx.PrimExpr:
        """A variable that is ``size``."""
        if isinstance(size, tirx.IntImm | tirx.Var):
            return size
        for known, variable in self._named:
            if structural_equal(known, size):
                return variable
        variable = tirx.SizeVar("bounded", "int64")
        self._named.append((size, variable))
        unknown = relax.ShapeStructInfo(ndim=1)
        shape = self.builder_.emit(relax.Call(_COPY, [relax.ShapeExpr([size])], sinfo_args=[unknown]))
        self.builder_.match_cast(shape, relax.ShapeStructInfo([variable]))
        return variable


def _bound(size: tirx.PrimExpr) -> int | None:
    """The most that ``size`` can be, if there is such a number."""
    most = arith.Analyzer().const_int_bound(size).max_value
    return None if most == arith.ConstIntBound.POS_INF else int(most)
