"""The least number of int32 in CUDA code, where ``-2147483648`` is a ``long``: minus, applied to a larger literal."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.target import is_gpu_code

_LEAST = -(1 << 31)


@tvm.transform.module_pass(opt_level=0, name="LeastLiterals")
class LeastLiterals:
    """Writes it as a difference of two that are of the type. ``max`` of it and an ``int`` is ambiguous in C++."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the kernels so written."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func):
                result[variable] = func.with_body(ir_transform(func.body, None, _difference, ["ir.IntImm"]))
        return result


def _difference(literal: tirx.IntImm) -> tirx.PrimExpr | None:
    if literal.dtype != "int32" or literal.value != _LEAST:
        return None
    return tirx.Sub(tirx.const(_LEAST + 1, "int32"), tirx.const(1, "int32"))
