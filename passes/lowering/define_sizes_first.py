"""Puts the binding that defines a size before those that use it, where fusion has moved them past it."""

from __future__ import annotations

from heapq import heappop, heappush

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
    """``bindings`` in an order in which each size is known; ``given`` are those that a call's tensors tell.

    A size is known after the first ``match_cast`` of several that could define it. Those that need it themselves (a
    tensor of that size, which was made with it) check it, wherever they stood.
    """
    defined = [_defined(binding) - given for binding in bindings]
    here = {binding.var for binding in bindings}.union(*defined)
    waiting: dict[relax.Var | tirx.Var, list[int]] = {}
    missing: list[set[relax.Var | tirx.Var]] = []
    for place, binding in enumerate(bindings):
        missing.append(here.intersection(_needs(binding)))
        for need in missing[place]:
            waiting.setdefault(need, []).append(place)
    order: list[int] = []
    ready = [place for place, needs in enumerate(missing) if not needs]  # sorted, so a heap
    while ready:
        order.append(place := heappop(ready))
        for known in (bindings[place].var, *defined[place]):
            for user in waiting.pop(known, ()):
                missing[user].remove(known)
                if not missing[user]:
                    heappush(ready, user)
    # What is left waits for a size of an earlier block, which is only checked here.
    return [bindings[place] for place in (*order, *sorted({*range(len(bindings))}.difference(order)))]


def _defined(binding: relax.Binding) -> set[tirx.Var]:
    """The sizes that are known once ``binding`` has run."""
    if not isinstance(binding, relax.MatchCast):
        return set()
    return set(relax.analysis.definable_tir_vars_in_struct_info(binding.struct_info))


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
