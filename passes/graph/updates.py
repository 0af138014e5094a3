"""Which of its parameters a graph function gives new values, and where it returns them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import relax

from tkc.contracts import NUM_INPUT, READ_STATE, UPDATES
from tkc.passes.graph.memory import named


@dataclass(frozen=True)
class Update:
    """The parameter ``target`` becomes ``value`` when the function has run."""

    target: relax.Var
    value: relax.Expr


def updates(function: relax.Function) -> tuple[Update, ...]:
    """What ``function`` updates, in the order in which it returns the new values."""
    targets = updated(function)
    if not targets:
        return ()
    values = list(returned(function).value.fields)[-len(targets) :]
    return tuple(Update(target, value) for target, value in zip(targets, values, strict=True))


def updated(function: relax.Function) -> tuple[relax.Var, ...]:
    """The parameters that ``function`` updates, in the order in which it returns their new values."""
    attributes = function.attrs or {}
    return tuple(function.params[int(i)] for i in attributes[UPDATES]) if UPDATES in attributes else ()


def constant_parameters(function: relax.Function) -> set[relax.Var]:
    """The parameters that have the same values at every call: weights that nothing in the program updates."""
    attributes = function.attrs or {}
    inputs, read = int(attributes.get(NUM_INPUT, len(function.params))), set(map(str, attributes.get(READ_STATE, ())))
    weights = {weight for weight in function.params[inputs:] if weight.name_hint not in read}
    return weights - set(updated(function))


def with_parameters(function: relax.Function, parameters: Sequence[relax.Var]) -> relax.Function:
    """``function`` with other parameters, among them all that it updates."""
    targets = updated(function)
    changed = relax.Function(parameters, function.body, function.ret_struct_info, function.is_pure, function.attrs)
    return changed.with_attr(UPDATES, [parameters.index(target) for target in targets]) if targets else changed


def returned(function: relax.Function) -> relax.VarBinding:
    """The binding of the tuple that ``function``, one that updates something, returns."""
    bindings = {binding.var: binding for block in function.body.blocks for binding in block.bindings}
    result = bindings[function.body.body]
    while not isinstance(result.value, relax.Tuple):
        result = bindings[result.value]
    return result


def overwritten(function: relax.Function) -> Iterator[str]:
    """What is wrong with ``function``, all of whose updates are in place; each fault as a clause.

    A ``call_tir_inplace`` stands for the memory of its argument after the write. What that memory was called before
    must not be read behind it. In the end, each updated parameter's memory holds its new value, and nothing else that
    is returned lies there.
    """
    memory = {param: param for param in function.params}
    overwritten_by: dict[relax.Var, relax.Var] = {}
    end = returned(function)
    for binding in (binding for block in function.body.blocks for binding in block.bindings):
        var, value = binding.var, binding.value
        written = _written(value)
        for read in _read(value, written):
            if read in overwritten_by:
                yield f"{var.name_hint} reads {read.name_hint} after {overwritten_by[read].name_hint} overwrote it"
        source = named(value) if written is None else written
        memory[var] = memory.get(source, var)
        if written is not None:
            overwritten_by.update({other: var for other, held in memory.items() if held.same_as(memory[var])})
            del overwritten_by[var]
    results, changed = list(end.value.fields), updates(function)
    targets = [update.target for update in changed]
    for update in changed:
        if not update.target.same_as(memory.get(update.value)):
            yield f"the new value of {update.target.name_hint} is not in its memory"
    for result in results[: len(results) - len(changed)]:
        if memory.get(result) in targets:
            yield f"the result {result.name_hint} lies in the memory of {memory[result].name_hint}"


def _written(value: relax.Expr) -> relax.Var | None:
    """The argument in whose memory ``value`` computes its result, if it does so."""
    if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir_inplace":
        return value.args[1].fields[int(value.attrs.inplace_indices[0])]
    return None


def _read(value: relax.Expr, written: relax.Var | None) -> list[relax.Var]:
    """The variables whose elements ``value`` reads. One that is computed anew stands last, and is not read."""
    if written is None:
        return list(relax.analysis.free_vars(value))
    arguments = list(value.args[1].fields)
    return arguments[:-1] if arguments[-1].same_as(written) else arguments
