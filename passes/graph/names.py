"""Names of variables, by which reports and profiles tell which of the model's nodes a call computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tvm import relax
from tvm.ir import IRModule, Op
from tvm.relax.expr_functor import PyExprMutator, mutator

_RESHAPE, _CALL_TIR = Op.get("relax.reshape"), Op.get("relax.call_tir")


_MADE_UP = re.compile(r"[lg]v\d*")


def name_of(var: relax.Var, values: Mapping[relax.Var, relax.Expr]) -> str:
    """The name of a variable, or, if TVM made it up and it is a view, that of what it shows."""
    while _MADE_UP.fullmatch(str(var.name_hint)) and isinstance(shown := _shown(values.get(var)), relax.Var):
        var = shown
    return str(var.name_hint)


def _shown(value: relax.Expr | None) -> relax.Expr | None:
    """What a reshape shows, as an operator or as a function that TVM wrote for one."""
    if not isinstance(value, relax.Call):
        return None
    if value.op == _RESHAPE:
        return value.args[0]
    if value.op == _CALL_TIR and str(value.args[0].name_hint).startswith("reshape"):
        return value.args[1].fields[0]
    return None


def renamed(module: IRModule, function: relax.Function, names: Mapping[relax.Var, str]) -> relax.Function:
    """``function`` of ``module`` with other names for some of its variables."""
    changed = {var: name for var, name in names.items() if name != var.name_hint}
    return _Renamed(module, changed).visit_expr(function) if changed else function


def with_names_of_readers(module: IRModule, after: relax.Function, before: relax.Function) -> relax.Function:
    """``after``, whose variables that ``before`` does not have are called as the first one there that reads them.

    A pass that computes a node in several steps so leaves the node's name to all of them: the last step, a view to the
    shape that the node has, often goes.
    """
    if after.same_as(before):
        return after
    known, bindings = {var for var, _ in _bindings(before.body)}, list(_bindings(after.body))
    new = {var for var, _ in bindings} - known
    if not new:
        return after
    names: dict[relax.Var, str] = {}
    for var, value in reversed(bindings):
        name = str(var.name_hint) if var in known else names.get(var)
        if name is not None:
            names.update({read: name for read in relax.analysis.free_vars(value) if read in new})
    return renamed(module, after, names)


def _bindings(expr: relax.Expr) -> Iterator[tuple[relax.Var, relax.Expr]]:
    """The variables that ``expr`` binds and their values, in order, those of branches before what they are of."""
    if isinstance(expr, relax.SeqExpr):
        for block in expr.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    yield from _bindings(value.true_branch)
                    yield from _bindings(value.false_branch)
                elif isinstance(value, relax.Function):
                    yield from _bindings(value.body)
                yield binding.var, value
        yield from _bindings(expr.body)


@mutator
class _Renamed(PyExprMutator):
    """Gives variables other names."""

    def __init__(self, module: IRModule, names: Mapping[relax.Var, str]) -> None:
        super().__init__(module)
        self._names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._named(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._named(var, relax.DataflowVar)

    def _named(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        if var not in self._names:
            return var
        renamed_var = kind(self._names[var], var.struct_info)
        self.set_var_remap(var.vid, renamed_var)
        return renamed_var
