"""Conditions of selections among vectors in a form that TVM's CUDA code has a name for.

TVM 0.25 writes the elements of a vector selection one by one, from a variable that holds the condition. It declares
that with the type of what is selected: ``float2 v = make_ushort2(...)``, which does not compile. A comparison of
vectors it has held in a variable of its own before. It also writes ``!`` before a vector of truth values, which is not
C++; that is a comparison here.
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
    """Makes every condition of a vector selection for a GPU, and every negation of a vector, a comparison, in functions
    that nothing simplifies any more."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such conditions."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func):
                result[variable] = func.with_body(ir_transform(func.body, None, _compared, ["tirx.Select", "tirx.Not"]))
        return result


def _compared(found: tirx.Select | tirx.Not) -> tirx.PrimExpr | None:
    lanes = lanes_of(found)
    if isinstance(found, tirx.Select):
        return _selected_by_comparison(found, lanes)
    return None if lanes == 1 else tirx.EQ(_as_numbers(found.a, lanes), _zeros(lanes))


def _selected_by_comparison(selection: tirx.Select, lanes: int) -> tirx.PrimExpr | None:
    condition = selection.condition
    if lanes == 1 or isinstance(condition, _HELD):
        return None
    holds = tirx.NE(_as_numbers(condition, lanes), _zeros(lanes))
    return tirx.Select(holds, selection.true_value, selection.false_value)


def _as_numbers(truths: tirx.PrimExpr, lanes: int) -> tirx.PrimExpr:
    if isinstance(truths, tirx.Broadcast):
        return tirx.Broadcast(tirx.Cast(_NUMBER, truths.value), lanes)
    return tirx.Cast(f"{_NUMBER}x{lanes}", truths)


def _zeros(lanes: int) -> tirx.PrimExpr:
    return tirx.Broadcast(tirx.IntImm(_NUMBER, 0), lanes)


def lanes_of(expr: tirx.PrimExpr) -> int:
    """How many elements ``expr`` has: one, or those of a vector."""
    return int(tvm.DataType(expr.dtype).lanes)
