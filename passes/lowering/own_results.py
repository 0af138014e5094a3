"""Gives what branches and loop bodies return, and what a model returns as a copy, memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext

from tkc.contracts import CONTROL_FLOW, GIVEN_MEMORY, GLOBAL_SYMBOL, MAIN, RESULT_MEMORY, UPDATES
from tkc.passes.graph.copies import copy_of
from tkc.passes.graph.memory import named


@tvm.transform.module_pass(opt_level=0, name="OwnResults")
class OwnResults:
    """Copies each result of a branch or body that lies in memory of a parameter, of a constant, or of another result.

    Branches and loop bodies return what they were handed, or views of it: a value that a step leaves as it is, the
    first state of a loop without steps. Who calls them takes the results for new tensors: memory planning gives away
    what was handed over, and updates in place write into it. A tensor that a function writes into in place is the
    exception: the state of a loop that it is stays where it is.

    Of the model's own results those are copied that are tensors of their own by the model (:data:`RESULT_MEMORY`), as
    ``x.clone()`` is, and lie in the memory of an argument, a weight, a constant or another result: who calls the model
    may write into them. A weight that a model returns is itself, as in PyTorch.

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
            change = _with_own_memory if name.name_hint == MAIN else _with_own_results
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


def _with_own_memory(builder: relax.BlockBuilder, function: relax.Function) -> relax.Function:
    """``function``, the model's, of which each result lies in memory that the model says, or of its own."""
    blocks, returned = list(function.body.blocks), function.body.body
    values = _values(function)
    whole = values[returned] if isinstance(values.get(returned), relax.Tuple) else returned
    results = list(whole.fields) if isinstance(whole, relax.Tuple) else [whole]
    shared = _shared_wrongly(function, results, values)
    if not shared:
        return function
    # Where the tuple is a binding, its fields may be variables that only its block has.
    block = relax.BindingBlock([])
    if whole is not returned:
        block = next(each for each in blocks if any(binding.var.same_as(returned) for binding in each.bindings))
    copies = {nth: relax.VarBinding(_new(block, results[nth]), copy_of(builder, results[nth])) for nth in shared}
    results = [copies[nth].var if nth in copies else result for nth, result in enumerate(results)]
    own = relax.Tuple(results) if isinstance(whole, relax.Tuple) else results[0]
    if whole is returned:
        blocks.append(relax.BindingBlock(list(copies.values())))
        returned = own
    else:
        bindings: list[relax.Binding] = []
        for each in block.bindings:
            ends = each.var.same_as(returned)
            bindings += [*copies.values(), relax.VarBinding(returned, own)] if ends else [each]
        blocks[blocks.index(block)] = type(block)(bindings)
    body = relax.SeqExpr(blocks, returned)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


def _shared_wrongly(
    function: relax.Function, results: Sequence[relax.Expr], values: Mapping[relax.Var, relax.Expr]
) -> list[int]:
    """Which of the model's ``results`` lie in memory that is not theirs by :data:`RESULT_MEMORY`."""
    attributes = function.attrs or {}
    given = attributes.get(RESULT_MEMORY)
    numbers = [None] * len(results) if given is None else [int(each) for each in given]
    updates = len(results) - len(attributes.get(UPDATES, ()))  # from there on they are
    owners = {_memory(result, values): numbers[nth] for nth, result in enumerate(results) if nth >= updates}
    found = []
    for nth, result in enumerate(results[:updates]):
        if not isinstance(result.struct_info, relax.TensorStructInfo):
            continue
        memory, number = _memory(result, values), numbers[nth]
        if isinstance(memory, relax.Constant):
            shared = False
        elif memory not in values:
            shared = number == GIVEN_MEMORY
        else:
            shared = memory not in owners or (number is not None and owners[memory] == number)
            owners.setdefault(memory, number)
        if not shared:
            found.append(nth)
    return found


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
    block = type(last)([*last.bindings[:-1], *copies, relax.VarBinding(end.var, relax.Tuple(results))])
    body = relax.SeqExpr([*function.body.blocks[:-1], block], function.body.body)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


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


def _memory(value: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """The variable that computed what ``value`` names or views; a parameter, or a constant, is itself."""
    while isinstance(value, relax.Var) and value in values:
        source = values[value]
        if isinstance(source, relax.Call | relax.TupleGetItem):
            source = named(source)
            if source is None:
                return value
        value = source
    return value
