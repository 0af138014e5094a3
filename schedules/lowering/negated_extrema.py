"""Maxima and minima of integers in functions that negate some, by device functions.

Of ``min(min(-a, b), c)`` nvcc 13.0 makes one instruction from sm_90 on (``VIMNMX3``), and loses the sign of ``a``, in
32 bits. :func:`~tkc.schedules.lowering.cuda_extrema.cuda_extremum` compares numbers that are no negated ones.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.cuda_extrema import cuda_extremum
from tkc.schedules.target import is_gpu_code

_LOST_IN = ("int32", "uint32")
_BY_FACTORS = (tirx.Mul, tirx.Div, tirx.FloorDiv)


@tvm.transform.module_pass(opt_level=0, name="GuardNegatedExtrema")
class GuardNegatedExtrema:
    """Calls device functions for such extrema, in functions for a GPU that nothing simplifies any more.

    It comes before ``WrapIntegers``, in whose sums and products a negation is not seen.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such calls."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if is_gpu_code(func) and any(map(_may_negate, nodes(func.body))):
                result[variable] = func.with_body(ir_transform(func.body, None, _called, ["tirx.Max", "tirx.Min"]))
        return result


def _called(found: tirx.Max | tirx.Min) -> tirx.PrimExpr | None:
    if found.dtype.partition("x")[0] not in _LOST_IN:
        return None
    return cuda_extremum(found.a, found.b, "max" if isinstance(found, tirx.Max) else "min")


def _may_negate(node: object) -> bool:
    """Whether this negates an integer: a difference from 0, a product with -1, or a quotient, a call too, by it."""
    if isinstance(node, tirx.Sub):
        return _is_integer(node.a, 0)
    operands = node.args if isinstance(node, tirx.Call) else (node.a, node.b) if isinstance(node, _BY_FACTORS) else ()
    return any(_is_integer(operand, -1) for operand in operands)


def _is_integer(expr: object, number: int) -> bool:
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.IntImm) and int(value) == number
