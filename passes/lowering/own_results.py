"""Gives what branches and loop bodies return, and what a model returns of constants, memory of its own."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext

from tkc.contracts import CONTROL_FLOW, GLOBAL_SYMBOL, MAIN
from tkc.passes.graph.copies import copy_of
from tkc.passes.graph.memory import named


@tvm.transform.module_pass(opt_level=0, name="OwnResults")
class OwnResults:
    """Copies each result of a branch or body that lies in memory of a parameter, of a constant, or of another result.

    Branches and loop bodies return what they were handed, or views of it: a value that a step leaves as it is, the
    first state of a loop without steps. Who calls them takes the results for new tensors: memory planning gives away
    what was handed over, and updates in place write into it. A tensor that a function writes into in place is the
    exception: the state of a loop that it is stays where it is.

    Of the model's own results those are copied that lie in memory of a constant, such as ``torch.arange(3)`` is: who
    calls the model may write into them, and the next call has to return the constant again. A weight that a model
    returns is itself, as in PyTorch.

    Runs when operators have become functions, which alone compute: all else only names memory. Branches and bodies of
    what nothing reads are gone then, and go.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` whose functions return tensors of their own."""
        functions = {
            name.name_hint: name
            for name, function in module.functions_items()
            # Others are groups of operators, which fusion made.
            if isinstance(function, relax.Function) and GLOBAL_SYMBOL in (function.attrs or {})
        }
        called = _called(module, functions)
        unread = functions.keys() - {name.name_hint for name in called}
        kept = {name: function for name, function in module.functions_items() if name.name_hint not in unread}
        builder = relax.BlockBuilder(IRModule(kept, attrs=module.attrs, global_infos=module.global_infos))
        for name in called:
            change = _with_own_constants if name.name_hint == MAIN else _with_own_results
            changed = change(builder, module[name])
            if len(functions) == 1 and changed.same_as(module[name]):
                return module
            builder.update_func(name, changed)
        return relax.transform.Normalize()(builder.get())


def _called(module: IRModule, functions: dict[str, GlobalVar]) -> dict[GlobalVar, None]:
    """``main`` and what it calls by name, directly or not."""
    found: dict[GlobalVar, None] = {}
    pending = [functions[MAIN]]

    def visit(expr: relax.Expr) -> None:
        runtime = expr.args[0] if isinstance(expr, relax.Call) and expr.args else None
        if isinstance(runtime, relax.ExternFunc) and runtime.global_symbol in CONTROL_FLOW:
            pending.extend(functions[each.value] for each in expr.args if isinstance(each, relax.StringImm))

    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = None
            relax.analysis.post_order_visit(module[name], visit)
    return found


def _with_own_constants(builder: relax.BlockBuilder, function: relax.Function) -> relax.Function:
    blocks = function.body.blocks
    values = _values(function)
    end = blocks[-1].bindings[-1] if blocks and blocks[-1].bindings else None
    if end is None or not isinstance(end, relax.VarBinding):
        return function
    are_several = isinstance(end.value, relax.Tuple)
    made: dict[relax.Expr, relax.VarBinding] = {}

    def own(result: relax.Expr) -> relax.Expr:
        if not isinstance(_memory(result, values), relax.Constant):
            return result
        if result not in made:
            made[result] = relax.VarBinding(_new(blocks[-1], result), copy_of(builder, result))
        return made[result].var

    if are_several:
        value: relax.Expr = relax.Tuple([own(field) for field in end.value.fields])
        bindings = [*blocks[-1].bindings[:-1], *made.values(), relax.VarBinding(end.var, value)]
    elif isinstance(_memory(end.var, values), relax.Constant):
        constant = _new(blocks[-1], end.var)
        made[constant] = relax.VarBinding(end.var, copy_of(builder, constant))
        bindings = [*blocks[-1].bindings[:-1], relax.VarBinding(constant, end.value), made[constant]]
    return _ending(function, bindings) if made else function


def _with_own_results(builder: relax.BlockBuilder, function: relax.Function) -> relax.Function:
    values = _values(function)
    last = function.body.blocks[-1]
    end = last.bindings[-1]
    if not isinstance(end.value, relax.Tuple):
        return function  # the results of another function are all that it returns
    results: list[relax.Expr] = []
    copies: list[relax.Binding] = []
    held: set[relax.Expr] = set()
    for result in end.value.fields:
        memory = _memory(result, values)
        if isinstance(result.struct_info, relax.TensorStructInfo):
            if memory in values and memory not in held:
                held.add(memory)
            else:
                copy = _new(last, result)
                copies.append(relax.VarBinding(copy, copy_of(builder, result)))
                result = copy
        results.append(result)
    if not copies:
        return function
    return _ending(function, [*last.bindings[:-1], *copies, relax.VarBinding(end.var, relax.Tuple(results))])


def _values(function: relax.Function) -> dict[relax.Var, relax.Expr]:
    return {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding | relax.MatchCast)
    }


def _new(block: relax.BindingBlock, value: relax.Expr) -> relax.Var:
    # Of few operators no dataflow block is made; outside of one there are no variables of dataflow.
    variable = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
    return variable("copy", value.struct_info)


def _ending(function: relax.Function, bindings: list[relax.Binding]) -> relax.Function:
    """``function`` with these ``bindings`` in its last block."""
    blocks = function.body.blocks
    body = relax.SeqExpr([*blocks[:-1], type(blocks[-1])(bindings)], function.body.body)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


def _memory(value: relax.Expr, values: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """The variable that computed what ``value`` names or views; a parameter, or a constant, is itself."""
    while isinstance(value, relax.Var) and value in values:
        source = values[value]
        if isinstance(source, relax.Call | relax.TupleGetItem):
            source = named(source)
            if source is None:
                return value
        value = source
    return value
