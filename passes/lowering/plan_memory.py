"""Decides which tensors of a function share memory."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.branches import has_branches
from tkc.passes.graph.memory import checked
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """TVM's ``StaticPlanBlockMemory``, for modules without branches and with one name for each tensor.

    It reuses memory that one branch allocates in the other branch, where it is never allocated: the program writes to
    whatever address it finds. Without a plan, each tensor has memory of its own, which is freed after its last use.

    And it does not know that the result of a ``match_cast``, or of a check of the runtime, is its argument: it gave
    away the memory of a tensor after the last use of its first name. What follows reads the first name, therefore.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with its memory planned, or as it is."""
        functions = (function for function in module.functions.values() if isinstance(function, relax.Function))
        if any(has_branches(function) for function in functions):
            return module
        return relax.transform.StaticPlanBlockMemory()(rewritten(module, _FirstNames))


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
