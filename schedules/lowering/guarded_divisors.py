"""Divisors of quotients that TVM computes ahead of the condition, or the loop, under which they are read.

TVM's elimination of common subexpressions binds a quotient that two conditional statements share before both of them.
Where the condition does not hold the divisor may be 0: ``max(m, 4)`` is simplified to ``m`` under ``m > 256``, and
processors trap.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.target import is_gpu_code


@tvm.transform.module_pass(opt_level=0, name="GuardDivisors")
class GuardDivisors:
    """Divides by 1 in place of 0 in CPU functions; nothing reads such a quotient.

    Not only what is bound: a quotient's own variables (of ``Let``) may stand in several places, where they must be
    alike.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the integer quotients of every CPU function so written."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc) and not is_gpu_code(func):
                result[variable] = func.with_body(ir_transform(func.body, None, _divided, ["tirx.Div", "tirx.Mod"]))
        return result


def _divided(quotient: tirx.Div | tirx.Mod) -> tirx.PrimExpr | None:
    divisor = quotient.b
    if not divisor.dtype.startswith(("int", "uint")) or isinstance(divisor, tirx.IntImm):
        return None
    if isinstance(divisor, tirx.Broadcast) and isinstance(divisor.value, tirx.IntImm):
        return None
    zero, one = (tirx.const(number, divisor.dtype) for number in (0, 1))
    return type(quotient)(quotient.a, tirx.Select(tirx.EQ(divisor, zero), one, divisor))
