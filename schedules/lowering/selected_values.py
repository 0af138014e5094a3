"""Selections among numbers of 16 and 8 bits, which are classes in CUDA's C++, as selections among values.

``c ? a[0] : b[0]`` chooses a place there, whose number is read later. nvcc 13.0 keeps ``a`` in memory for that, and
loses a vector that was stored into it before: what is read is what the memory held. What a function returns is a
value.
"""

from __future__ import annotations

import tvm
from tvm import DataType, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.lowering.cuda_functions import cuda_value
from tkc.schedules.target import is_gpu_code

_NARROW = 16


@tvm.transform.module_pass(opt_level=0, name="SelectValues")
class SelectValues:
    """Reads what is selected before it is selected, in functions for a GPU that nothing simplifies any more."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such selections."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func):
                result[variable] = func.with_body(ir_transform(func.body, None, _of_values, ["tirx.Select"]))
        return result


def _of_values(selection: tirx.Select) -> tirx.PrimExpr | None:
    dtype = DataType(selection.dtype)
    if "float" not in selection.dtype or dtype.bits > _NARROW or dtype.lanes > 1:
        return None
    values = (_value(branch) for branch in (selection.true_value, selection.false_value))
    return tirx.Select(selection.condition, *values)


def _value(branch: tirx.PrimExpr) -> tirx.PrimExpr:
    return cuda_value(branch) if isinstance(branch, tirx.BufferLoad | tirx.Var) else branch
