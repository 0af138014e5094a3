"""Conditions of selections among vectors in a form that TVM's CUDA code has a name for.

TVM 0.25 writes the elements of a vector selection one by one, from a variable that holds the condition. It declares
that with the type of what is selected: ``float2 v = make_ushort2(...)``, which does not compile. A comparison of
vectors it has held in a variable of its own before.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.target import is_gpu_code

_HELD = (
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.EQ,
    tirx.NE,
    tirx.And,
    tirx.Or,
    tirx.Not,
)
_NUMBER = "int32"


@tvm.transform.module_pass(opt_level=0, name="CompareForSelections")
class CompareForSelections:
    """Makes every condition of a vector selection for a GPU a comparison, in functions that nothing simplifies any
    more."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such conditions."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func):
                result[variable] = func.with_body(ir_transform(func.body, None, _compared, ["tirx.Select"]))
        return result


def _compared(selection: tirx.Select) -> tirx.PrimExpr | None:
    lanes = lanes_of(selection)
    condition = selection.condition
    if lanes == 1 or isinstance(condition, _HELD):
        return None
    if isinstance(condition, tirx.Broadcast):
        number = tirx.Broadcast(tirx.Cast(_NUMBER, condition.value), lanes)
    else:
        number = tirx.Cast(f"{_NUMBER}x{lanes}", condition)
    zero = tirx.Broadcast(tirx.IntImm(_NUMBER, 0), lanes)
    return tirx.Select(tirx.NE(number, zero), selection.true_value, selection.false_value)


def lanes_of(expr: tirx.PrimExpr) -> int:
    """How many elements ``expr`` has: one, or those of a vector."""
    return int(tvm.DataType(expr.dtype).lanes)
