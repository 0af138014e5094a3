"""Arithmetic of integer data that wraps around, as PyTorch's and ONNX's does.

TVM tells LLVM, and CUDA's C++ says to nvcc, that those of 32 and 64 bits never overflow. What reads the result is then
optimized on that promise: ``x + 1 < x`` is never true, ``x * 5 // 5`` is ``x``. Positions keep the promise, which LLVM
needs to make vectors of loops; data does not. Those of 8 and 16 bits C++ computes in 32: they do not wrap around until
they are stored, and what reads the result before sees more bits than the integer has.
"""

from __future__ import annotations

import tvm
from tvm import DataType, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform, post_order_visit

from tkc.schedules.target import is_gpu_code

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)
_PROMISED = (32, 64)
"""Bits of the integers that TVM promises not to overflow."""

_PROMOTED = (8, 16)
"""Bits of the integers that C++ computes in 32."""

_BITWISE = frozenset({"tirx.shift_left", "tirx.bitwise_not"})
"""Operators on bits that, computed in 32 bits, give numbers beyond those of 8 or 16."""


@tvm.transform.module_pass(opt_level=0, name="WrapIntegers")
class WrapIntegers:
    """Computes sums, differences and products of loaded integers so that they wrap around, in every function.

    It comes last before code is generated: what simplifies integers would undo it.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such arithmetic written for each function's own target."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result[variable] = func.with_body(_wrapping(func))
        return result


def _wrapping(func: tirx.PrimFunc) -> tirx.Stmt:
    on_cuda = is_gpu_code(func)
    data = _Data(func.body)

    def replaced(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        dtype = DataType(expr.dtype)
        if "int" not in expr.dtype or expr not in data:
            return None
        if on_cuda and dtype.bits in _PROMOTED and dtype.lanes == 1:  # elements of vectors are stored in their type
            return _cut(expr)
        if dtype.bits not in _PROMISED or not isinstance(expr, _ARITHMETIC):
            return None
        if on_cuda:
            return None if expr.dtype.startswith("uint") else _computed(expr, f"u{expr.dtype}")
        # LLVM computes the lower half of it alone, and that without the promise.
        return _computed(expr, expr.dtype.replace(str(dtype.bits), str(2 * dtype.bits), 1))

    # The lowest number by -1 is one more than the highest. LLVM computes in the integers' own type.
    kinds = (*_ARITHMETIC, tirx.Div, tirx.Call) if on_cuda else _ARITHMETIC
    return ir_transform(func.body, None, replaced, [f"tirx.{kind.__name__}" for kind in kinds])


def _cut(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
    """``expr`` in the 32 bits in which C++ computes it, cut to its own type; ``None`` where none of them is beyond."""
    if not isinstance(expr, tirx.Call):
        return _computed(expr, "int32")
    if not isinstance(expr.op, tvm.ir.Op) or expr.op.name not in _BITWISE:
        return None
    wide = [tirx.Cast("int32", argument) for argument in expr.args]
    return tirx.Cast(expr.dtype, tirx.Call("int32", expr.op, wide))


def _computed(expr: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    """``expr`` computed in ``dtype``, in which it cannot overflow or wraps around, and cut to its own."""
    return tirx.Cast(expr.dtype, type(expr)(tirx.Cast(dtype, expr.a), tirx.Cast(dtype, expr.b)))


class _Data:
    """The expressions of a function that are loaded, or computed from what is; positions alone are not."""

    def __init__(self, body: tirx.Stmt) -> None:
        self._known: dict[tirx.PrimExpr, bool] = {}
        self._variables: set[tirx.Var] = set()
        bound: list[tirx.Bind | tirx.Let] = []
        post_order_visit(body, lambda node: bound.append(node) if isinstance(node, tirx.Bind | tirx.Let) else None)
        while found := {node.var for node in bound if node.value in self} - self._variables:
            self._variables |= found
            self._known.clear()

    def __contains__(self, expr: tirx.PrimExpr) -> bool:
        if expr not in self._known:
            self._known[expr] = self._is_data(expr)
        return self._known[expr]

    def _is_data(self, expr: tirx.PrimExpr) -> bool:
        if isinstance(expr, tirx.BufferLoad):
            return True
        if isinstance(expr, tirx.Var):
            return expr in self._variables
        return any(part in self for part in _parts(expr))


def _parts(expr: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    names = ("a", "b", "value", "base", "body", "true_value", "false_value")
    parts = [getattr(expr, name, None) for name in names]
    parts += [*getattr(expr, "args", ()), *getattr(expr, "vectors", ())]
    return [part for part in parts if isinstance(part, tirx.PrimExpr)]
