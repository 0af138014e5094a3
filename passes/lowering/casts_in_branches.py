"""Moves what checks or defines sizes in branches out of dataflow blocks, where ``FuseOps`` fails on it."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator


@tvm.transform.module_pass(opt_level=0, name="CastsInBranches")
class CastsInBranches:
    """In branches, each ``match_cast`` in a block of its own between the dataflow blocks before and behind it.

    ``FuseOps`` knows no group of one in the dataflow block of a branch, and ends in an internal error.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the blocks of branches cut at every ``match_cast``."""
        result = IRModule(module.functions, attrs=module.attrs, global_infos=module.global_infos)
        for name, function in module.functions_items():
            if isinstance(function, relax.Function) and _has_branches(function):
                result[name] = _Cut(module).visit_expr(function)
        return result


def _has_branches(function: relax.Function) -> bool:
    body = function.body
    blocks = body.blocks if isinstance(body, relax.SeqExpr) else []
    return any(isinstance(binding.value, relax.If) for block in blocks for binding in block.bindings)


@mutator
class _Cut(PyExprMutator):
    """Cuts blocks within branches, and makes ordinary variables of those that more than one part reads."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._depth = 0
        self._shared: set[relax.Var] = set()

    def visit_if_(self, op: relax.If) -> relax.Expr:
        self._depth += 1
        try:
            return super().visit_if_(op)
        finally:
            self._depth -= 1

    def visit_seq_expr_(self, op: relax.SeqExpr) -> relax.Expr:
        if self._depth:
            blocks = [part for block in op.blocks for part in self._parts(block)]
            op = relax.SeqExpr(blocks, op.body)
        return super().visit_seq_expr_(op)

    def _parts(self, block: relax.BindingBlock) -> Iterator[relax.BindingBlock]:
        bindings = list(block.bindings)
        if not isinstance(block, relax.DataflowBlock) or not any(isinstance(b, relax.MatchCast) for b in bindings):
            yield block
            return
        parts: list[list[relax.Binding]] = [[]]
        for binding in bindings:
            if isinstance(binding, relax.MatchCast):
                parts += [[binding], []]
            else:
                parts[-1].append(binding)
        home = {binding.var: i for i, part in enumerate(parts) for binding in part}
        for i, part in enumerate(parts):
            for binding in part:
                if isinstance(binding, relax.MatchCast):
                    self._shared.add(binding.var)
                self._shared.update(v for v in relax.analysis.free_vars(binding.value) if home.get(v, i) != i)
        for part in filter(None, parts):
            yield relax.BindingBlock(part) if isinstance(part[0], relax.MatchCast) else relax.DataflowBlock(part)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        if var not in self._shared:
            return super().visit_dataflow_var_def_(var)
        ordinary = relax.Var(var.name_hint, var.struct_info)
        self.set_var_remap(var.vid, ordinary)
        return ordinary
