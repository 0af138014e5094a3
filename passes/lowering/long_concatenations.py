"""Keeps concatenations of many parts from being fused into what chooses among values, too."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext

from tkc.contracts import INJECTIVE_PATTERN, OP_PATTERN

_CALL_TIR = Op.get("relax.call_tir")
_IF_THEN_ELSE = Op.get("tirx.if_then_else")

_REDUCTION = 3
"""TVM's kind of functions that nothing of their own kind fuses with."""

MOST_PARTS = 8
"""Of a concatenation that is fused into another one, or into a padding."""


@tvm.transform.module_pass(opt_level=0, name="LongConcatenations")
class LongConcatenations:
    """Marks functions of many selections whose results are selected again, so that fusion leaves them alone.

    A concatenation of ``n`` parts is ``n`` nested selections. One within another's part, or within a padding's, is
    looked at for each bound of the outer one, and with a dozen parts each the time that TVM's analysis of intervals
    takes, and the depth of its recursion, have no end.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module``, whose functions have patterns, with other ones for such functions."""
        selections = {
            name: _selections(function)
            for name, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
            and int((function.attrs or {}).get(OP_PATTERN, 8)) <= INJECTIVE_PATTERN
        }
        if all(count < MOST_PARTS for count in selections.values()):
            return module
        changed = module.clone()
        for function in module.functions.values():
            if isinstance(function, relax.Function):
                for name in _selected_again(function, selections):
                    changed[name] = module[name].with_attr(OP_PATTERN, _REDUCTION)
        return changed


def _selected_again(function: relax.Function, selections: dict[tvm.ir.GlobalVar, int]) -> set[tvm.ir.GlobalVar]:
    """The functions of many selections from whose results others choose, also behind what only moves elements."""
    found = set()
    chosen: set[relax.Var] = set()
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    for binding in reversed(bindings):
        value = binding.value
        if not isinstance(value, relax.Call) or value.op != _CALL_TIR or value.args[0] not in selections:
            continue
        name = value.args[0]
        if selections[name] >= MOST_PARTS and binding.var in chosen:
            found.add(name)
        if selections[name] or binding.var in chosen:
            chosen.update(relax.analysis.free_vars(value))
    return found


def _selections(function: tirx.PrimFunc) -> int:
    """How many selections a function makes of an element."""
    count = 0

    def visit(node: object) -> None:
        nonlocal count
        count += isinstance(node, tirx.Call) and node.op == _IF_THEN_ELSE

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return count
