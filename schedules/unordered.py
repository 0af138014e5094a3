"""Generated functions that do not give the same bits twice: threads add to one place, in the order in which they come.

Integers have the same sum in every order; floating-point numbers do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tkc.schedules.blocks import nodes

_CALLS = tuple(tvm.ir.Op.get(name) for name in ("relax.call_tir", "relax.call_tir_inplace"))
_FLOATS = ("float", "bfloat")


@dataclass(frozen=True)
class UnorderedFunction:
    """A function, the graph's ``variables`` that calls of it compute, and why these may differ from run to run."""

    function: str
    variables: tuple[str, ...]
    reason: str


def unordered_functions(module: tvm.IRModule) -> tuple[UnorderedFunction, ...]:
    """The functions of a scheduled ``module`` whose results depend on the order in which threads come, by name."""
    found = []
    for name, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        reason = unordered(func) if isinstance(func, tirx.PrimFunc) else None
        if reason is not None:
            found.append(UnorderedFunction(str(name.name_hint), _computed_by(module, name.name_hint), reason))
    return tuple(found)


def unordered(func: tirx.PrimFunc) -> str | None:
    """Why the results of ``func`` depend on the order in which threads come, as a clause for users; or ``None``."""
    for node in nodes(func.body):
        if isinstance(node, tirx.Call) and (name := _atomic(node)) is not None and _is_of_floats(node):
            return f"threads add floating-point numbers to one place in the order in which they come ({name})"
    return None


def _atomic(call: tirx.Call) -> str | None:
    """The name of the atomic operation that is called, of TVM's or of CUDA's, if one is."""
    names = [getattr(call.op, "name", ""), *(arg.value for arg in call.args[:1] if isinstance(arg, tirx.StringImm))]
    return next((name for name in names if "atomic" in name.lower()), None)


def _is_of_floats(call: tirx.Call) -> bool:
    operands = [call, *call.args]
    return any(str(getattr(operand, "dtype", "")).startswith(_FLOATS) for operand in operands)


def _computed_by(module: tvm.IRModule, name: str) -> tuple[str, ...]:
    """The variables to which the graph's functions bind calls of the function ``name``, in their order."""
    found: list[str] = []

    def visit(node: relax.Expr) -> None:
        if not isinstance(node, relax.SeqExpr):
            return
        for binding in (binding for block in node.blocks for binding in block.bindings):
            value = getattr(binding, "value", None)
            if isinstance(value, relax.Call) and value.op in _CALLS and value.args[0].name_hint == name:
                found.append(str(binding.var.name_hint))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return tuple(dict.fromkeys(found))
