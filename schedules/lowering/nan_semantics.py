"""Maxima, minima and comparisons of floats that treat NaN as PyTorch and ONNX have it.

TVM's extrema are one comparison on the CPU and ``fmaxf`` on CUDA, and lose a NaN on one side or on both; its ``!=``
finds a NaN equal to everything on the CPU. Until code is generated they stay TVM's, so that schedule rules, and what
divides reductions among threads, recognise them.
"""

from __future__ import annotations

import math

import tvm
from tvm import DataType, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.lowering.cuda_extrema import cuda_extremum
from tkc.schedules.lowering.data_conditions import shown
from tkc.schedules.lowering.float_algebra import unguarded
from tkc.schedules.lowering.held_values import bound
from tkc.schedules.lowering.literals import bits_of
from tkc.schedules.target import is_gpu_code

_NODES = ["tirx.Max", "tirx.Min", "tirx.NE", "tirx.Call", "ir.FloatImm"]
_HALF = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="NanSemantics")
class NanSemantics:
    """Spells out extrema and inequalities of floats in functions that nothing simplifies any more.

    Those of integers stay as they are.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such expressions in every function, written for the function's own target."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result[variable] = _spelled_out(func)
        return result


def _spelled_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    on_cuda = is_gpu_code(func)
    extremum = cuda_extremum if on_cuda else _by_comparison

    def replaced(found: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(found, tirx.Call):
            condition = shown(found, on_cuda=on_cuda)
            if not isinstance(condition, tirx.NE):
                return unguarded(found) if condition is None else condition
            found = condition
        if isinstance(found, tirx.FloatImm):
            return _written(found) if on_cuda else _without_equal(found)
        if isinstance(found, tirx.NE):
            # LLVM is asked for "less or greater" otherwise.
            return found if on_cuda or "float" not in found.a.dtype else tirx.Not(tirx.EQ(found.a, found.b))
        if "float" not in found.dtype:
            return None
        return extremum(found.a, found.b, "max" if isinstance(found, tirx.Max) else "min")

    return func.with_body(ir_transform(func.body, None, replaced, _NODES))


def _written(number: tirx.FloatImm) -> tirx.PrimExpr | None:
    """An infinity or NaN in 16 bits as one in float32 that is cast: TVM writes "inff" for the former, no C++."""
    if number.dtype not in _HALF or math.isfinite(number.value):
        return None
    return tirx.Cast(number.dtype, tirx.FloatImm("float32", number.value))


def _without_equal(number: tirx.FloatImm) -> tirx.PrimExpr | None:
    """NaN as an integer's bits: TVM's analyzer, which visits a variable twice, finds a literal unequal to itself."""
    if not math.isnan(number.value):
        return None
    return tirx.reinterpret(number.dtype, bits_of(number, f"int{DataType(number.dtype).bits}"))


def _by_comparison(a: tirx.PrimExpr, b: tirx.PrimExpr, op: str) -> tirx.PrimExpr:
    """``b`` where it is NaN or beyond ``a``, else ``a``: an extremum and a blend on x86, or the extremum alone.

    A reduction has its result so far in ``a``. What is tested for NaN is the other operand, so that its chain of
    operations grows by the blend only.
    """
    if _is_number(b) and not _is_number(a):
        a, b = b, a
    relation = tirx.GT if op == "max" else tirx.LT
    if _is_number(a):
        # A comparison with NaN is false: b is what remains, and LLVM makes one instruction of this.
        return bound(b, lambda b: tirx.Select(relation(a, b), a, b))

    def of_both(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.Select(tirx.Not(tirx.EQ(b, b)), b, tirx.Select(relation(b, a), b, a))

    return bound(a, lambda a: bound(b, lambda b: of_both(a, b)))


def _is_number(expr: tirx.PrimExpr) -> bool:
    """Whether ``expr`` is a constant other than NaN."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)
