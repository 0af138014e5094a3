"""Which of its parameters a graph function gives new values, and where it returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from tkc.contracts import UPDATES


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
