"""Which of its parameters a graph function gives new values, and where it returns them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

ATTRIBUTE = "tkc.updates"
"""A function's attribute: the positions of the parameters that it updates. It returns their new values, in this order,
behind everything else that it returns, as one tuple."""


@dataclass(frozen=True)
class Update:
    """The parameter ``target`` becomes ``value`` when the function has run."""

    target: relax.Var
    value: relax.Expr


def updates(function: relax.Function) -> tuple[Update, ...]:
    """What ``function`` updates, in the order in which it returns the new values."""
    positions = _positions(function)
    if not positions:
        return ()
    values = list(returned(function).value.fields)[-len(positions) :]
    return tuple(Update(function.params[i], value) for i, value in zip(positions, values, strict=True))


def returned(function: relax.Function) -> relax.VarBinding:
    """The binding of the tuple that ``function``, one that updates something, returns."""
    bindings = {binding.var: binding for block in function.body.blocks for binding in block.bindings}
    result = bindings[function.body.body]
    while not isinstance(result.value, relax.Tuple):
        result = bindings[result.value]
    return result


def _positions(function: relax.Function) -> list[int]:
    attributes = function.attrs or {}
    return [int(position) for position in attributes[ATTRIBUTE]] if ATTRIBUTE in attributes else []
