"""Puts the binding that defines a size before those that use it, where fusion has moved them past it."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="DefineSizesFirst")
class DefineSizesFirst:
    """Orders the bindings of dataflow blocks by the tensors *and* the symbolic sizes that they need.

    ``FuseOps`` orders groups by their tensors alone. A size that a ``match_cast`` defines (the length of a range, what
    a mask selects) may then be used above it, which ``VMShapeLower`` refuses.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with each binding as early as before, or as late as its sizes make it."""
        return rewritten(module, _Ordering)


@mutator
class _Ordering(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._given: set[tirx.Var] = set()

    def visit_function_(self, function: relax.Function) -> relax.Function:
        sizes = (relax.analysis.tir_vars_in_struct_info(param.struct_info) for param in function.params)
        self._given = {size for found in sizes for size in found}
        return super().visit_function_(function)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        return super().visit_dataflow_block_(relax.DataflowBlock(_ordered(block.bindings, self._given)))


def _ordered(bindings: list[relax.Binding], given: set[tirx.Var]) -> list[relax.Binding]:
    """``bindings`` in an order in which each size is known; ``given`` are those that a call's tensors tell."""
    makers: dict[relax.Var | tirx.Var, relax.Binding] = {}
    for binding in bindings:
        makers[binding.var] = binding
        if isinstance(binding, relax.MatchCast):
            for size in relax.analysis.definable_tir_vars_in_struct_info(binding.struct_info):
                if size not in given:  # or it is checked there, not defined
                    makers.setdefault(size, binding)
    order: list[relax.Binding] = []
    visited: set[relax.Var] = set()
    pending = [(binding, False) for binding in reversed(bindings)]
    while pending:
        binding, needs_are_placed = pending.pop()
        if needs_are_placed:
            order.append(binding)
        elif binding.var not in visited:
            visited.add(binding.var)
            pending.append((binding, True))
            pending += [(makers[need], False) for need in reversed(_needs(binding)) if need in makers]
    return order


def _needs(binding: relax.Binding) -> list[relax.Var | tirx.Var]:
    """The variables and sizes that must be known when ``binding`` runs."""
    needs: list[relax.Var | tirx.Var] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            needs.append(expr)
        elif not isinstance(expr, relax.DataTypeImm | relax.StringImm) and expr.struct_info_ is not None:
            needs.extend(relax.analysis.tir_vars_in_struct_info(expr.struct_info))

    relax.analysis.post_order_visit(binding.value, visit)
    return needs
