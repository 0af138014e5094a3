"""Keeps what a model asserts of sizes that its data decides, where nothing is left that reads what was checked."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from tkc.contracts import CHECK, RUNTIME_CHECKS
from tkc.passes.graph.runtime_calls import runtime_call


@tvm.transform.module_pass(opt_level=0, name="KeepChecks")
class KeepChecks:
    """Has the first result of a function depend on checks of what nothing reads.

    A check returns what it checked, so that all that is computed of it comes after. What is computed of nothing is
    folded (:mod:`.empty_tensors`), and the check would be removed with the rest.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which every check is read."""
        changed = {
            name: _with_checks(function)
            for name, function in module.functions_items()
            if isinstance(function, relax.Function)
        }
        return IRModule({**dict(module.functions_items()), **changed}, attrs=module.attrs)


def _with_checks(function: relax.Function) -> relax.Function:
    body = function.body
    if not isinstance(body, relax.SeqExpr) or not body.blocks:
        return function
    block = body.blocks[-1]
    if not isinstance(block, relax.DataflowBlock) or not any(map(_is_check, block.bindings)):
        return function
    lost = _unread_checks(function, block)
    result = next((binding for binding in block.bindings if binding.var.same_as(body.body)), None)
    if not lost or result is None:
        return function
    leaves = list(result.value.fields) if isinstance(result.value, relax.Tuple) else [result.value]
    at = next((i for i, leaf in enumerate(leaves) if isinstance(leaf.struct_info, relax.TensorStructInfo)), None)
    if at is None:
        return function
    info = leaves[at].struct_info
    value, checked = (relax.DataflowVar(f"checked_{part}", info) for part in ("value", "result"))
    arguments = [relax.StringImm(""), value, relax.PrimValue(tvm.tirx.IntImm("int64", 1)), *lost]
    call = relax.BlockBuilder().normalize(relax.call_pure_packed(CHECK, *arguments, sinfo_args=[info]))
    added = [relax.VarBinding(value, leaves[at]), relax.VarBinding(checked, call)]
    leaves[at] = checked
    whole = relax.Tuple(leaves) if isinstance(result.value, relax.Tuple) else checked
    rest = [binding for binding in block.bindings if not binding.var.same_as(body.body)]
    last = relax.DataflowBlock([*rest, *added, relax.VarBinding(result.var, whole)])
    seq = relax.SeqExpr([*body.blocks[:-1], last], body.body)
    return relax.Function(function.params, seq, function.ret_struct_info, function.is_pure, function.attrs)


def _unread_checks(function: relax.Function, block: relax.DataflowBlock) -> list[relax.Var]:
    """The checks in the last ``block`` that neither the result nor the sizes of what it is computed of come from."""
    infos = [param.struct_info for param in function.params]
    known = {size for info in infos for size in relax.analysis.tir_vars_in_struct_info(info)}
    defined: dict[relax.Var, set[tvm.tirx.Var]] = {}
    for binding in block.bindings:  # a cast that says nothing new defines nothing, and TVM removes it
        sizes = set(relax.analysis.tir_vars_in_struct_info(binding.var.struct_info))
        defined[binding.var] = sizes - known if isinstance(binding, relax.MatchCast) else set()
        known |= sizes
    result = function.body.body
    live = {result, *relax.analysis.free_vars(result)}
    lost: list[relax.Var] = []
    for binding in reversed(block.bindings):
        is_read = binding.var in live or not live.isdisjoint(defined[binding.var])
        if not is_read and _is_check(binding):
            lost.append(binding.var)
            is_read = True
        if is_read:
            live.update(relax.analysis.free_vars(binding.value), _sizes_in(binding.value))
            live.update(relax.analysis.tir_vars_in_struct_info(binding.var.struct_info))
    return lost[::-1]


def _is_check(binding: relax.Binding) -> bool:
    return (runtime_call(binding.value) or ("", []))[0] in RUNTIME_CHECKS


def _sizes_in(value: relax.Expr) -> list[tvm.tirx.Var]:
    found: list[tvm.tirx.Var] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.PrimValue | relax.ShapeExpr):
            sizes = [expr.value] if isinstance(expr, relax.PrimValue) else list(expr.values)
            found.extend(variable for size in sizes for variable in tvm.tirx.analysis.undefined_vars(size))

    relax.analysis.post_order_visit(value, visit)
    return found
