"""Computes once what a dataflow block computes several times."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal, structural_hash

from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="EliminateCommonSubexpressions")
class EliminateCommonSubexpressions:
    """Replaces a binding of a dataflow block by an earlier one of an equal value.

    TVM's ``EliminateCommonSubexpr`` takes values of equal hashes for equal, and its hashes of small numbers collide:
    it makes one of ``x + 1`` and ``x - 3``. Here the hash only says which values to compare.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which no two variables of a block have the same value."""
        return rewritten(module, _Elimination)


@mutator
class _Elimination(PyExprMutator):
    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        return super().visit_dataflow_block_(relax.DataflowBlock(_unique(block.bindings)))


def _unique(bindings: list[relax.Binding]) -> list[relax.Binding]:
    earlier: dict[int, list[relax.Binding]] = {}
    renamed: dict[relax.Var, relax.Var] = {}
    kept: list[relax.Binding] = []
    for binding in bindings:
        value = _with(binding.value, renamed)
        if isinstance(binding, relax.MatchCast):
            now: relax.Binding = relax.MatchCast(binding.var, value, binding.struct_info)
        else:
            now = relax.VarBinding(binding.var, value)
        if not isinstance(value, relax.Call | relax.Tuple | relax.TupleGetItem) and not isinstance(
            binding, relax.MatchCast
        ):
            kept.append(now)
            continue
        candidates = earlier.setdefault(structural_hash(value, skip_tensor_content=True), [])
        first = next((other.var for other in candidates if _same(other, now)), None)
        if first is None:
            candidates.append(now)
            kept.append(now)
        elif isinstance(binding.var, relax.DataflowVar):
            renamed[binding.var] = first
        else:  # what the block returns keeps its name
            kept.append(relax.VarBinding(binding.var, first))
    return kept


def _same(left: relax.Binding, right: relax.Binding) -> bool:
    """Whether two bindings give their variables one value, of one shape and dtype."""
    if isinstance(left, relax.MatchCast) is not isinstance(right, relax.MatchCast):
        return False
    return bool(
        structural_equal(left.value, right.value) and structural_equal(left.var.struct_info, right.var.struct_info)
    )


def _with(value: relax.Expr, renamed: dict[relax.Var, relax.Var]) -> relax.Expr:
    """``value`` over the variables that stay."""
    if isinstance(value, relax.Var):
        return renamed.get(value, value)
    if isinstance(value, relax.TupleGetItem):
        whole = _with(value.tuple_value, renamed)
        return value if whole.same_as(value.tuple_value) else relax.TupleGetItem(whole, value.index)
    if not isinstance(value, relax.Call | relax.Tuple):
        return value
    before = list(value.args if isinstance(value, relax.Call) else value.fields)
    after = [_with(part, renamed) for part in before]
    if all(new.same_as(old) for new, old in zip(after, before, strict=True)):
        return value
    if isinstance(value, relax.Tuple):
        return relax.Tuple(after)
    return relax.Call(value.op, after, value.attrs, value.sinfo_args)
