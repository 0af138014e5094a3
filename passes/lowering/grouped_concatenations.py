"""Joins many tensors in groups first, then the groups."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

_CONCAT = Op.get("relax.concat")

MOST_JOINED = 64
"""Tensors that one function joins; the widest block of DenseNet-201 has 49."""


@tvm.transform.module_pass(opt_level=0, name="GroupedConcatenations")
class GroupedConcatenations:
    """Replaces concatenations of more than :data:`MOST_JOINED` tensors by ones of concatenations.

    A concatenation of ``n`` parts is ``n`` nested selections for each element. TVM's analyses take time that grows with
    the square of them, and recursion as deep; of 256 no code can be generated. Groups of one size are one function.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without long concatenations."""
        return rewritten(module, _Grouping) if _any_long(module) else module


def _any_long(module: IRModule) -> bool:
    """Whether any function has a tuple that is long enough to be grouped."""
    most = 0

    def visit(node: relax.Expr) -> None:
        nonlocal most
        if isinstance(node, relax.Tuple):
            most = max(most, len(node.fields))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return most > MOST_JOINED


@mutator
class _Grouping(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != _CONCAT or call.attrs.axis is None:
            return call
        tensors = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else call.args[0]
        if not isinstance(tensors, relax.Tuple) or len(tensors.fields) <= MOST_JOINED:
            return call
        joined, axis = list(tensors.fields), int(call.attrs.axis)
        while len(joined) > MOST_JOINED:
            joined = [self.builder_.emit(relax.op.concat(group, axis)) for group in _groups(joined)]
        return relax.op.concat(joined, axis)


def _groups(tensors: Sequence[relax.Expr]) -> list[Sequence[relax.Expr]]:
    """``tensors`` in as few groups as there have to be, of sizes as equal as they can be."""
    count = -(-len(tensors) // MOST_JOINED)
    size = -(-len(tensors) // count)
    return [tensors[begin : begin + size] for begin in range(0, len(tensors), size)]
