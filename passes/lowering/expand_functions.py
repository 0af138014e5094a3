"""Writes functions that TVM's vector code for the CPU lacks, or leaves out, by those that it has."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

# Below this, the difference of e^x and e^-x has lost too many digits, and six terms of the series have them all.
_SMALL = 1.0

_LARGE = 3e38
"""More than the root of any float32."""


@tvm.transform.module_pass(opt_level=0, name="ExpandFunctions")
class ExpandFunctions:
    """Replaces ``tan``, ``sinh`` and ``cosh``, which come out wrong, or not at all, where a loop is vectorized."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without these functions."""
        return rewritten(module, _Expanding)


@mutator
class _Expanding(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        expand = _EXPANSIONS.get(call.op.name) if isinstance(call.op, Op) else None
        # In float64 the six terms are too few: those call the C library (``number_legalization``).
        if expand is None or call.struct_info.dtype == "float64":
            return call
        dtype = call.struct_info.dtype
        wide = call.args[0] if dtype == "float32" else self.builder_.normalize(relax.op.astype(call.args[0], "float32"))
        result = self.builder_.normalize(expand(wide))
        return result if dtype == "float32" else self.builder_.normalize(relax.op.astype(result, dtype))


def _tan(x: relax.Expr) -> relax.Expr:
    """The quotient of sine and cosine, in which LLVM must not see that it is one, or makes it the tangent again."""
    cosine, zero = relax.op.cos(x), relax.const(0, x.struct_info.dtype)
    return relax.op.divide(relax.op.sin(x), relax.op.where(relax.op.equal(cosine, zero), zero, cosine))


def _cosh(x: relax.Expr) -> relax.Expr:
    return relax.op.add(_half_exp(x, 1), _half_exp(x, -1))


def _sinh(x: relax.Expr) -> relax.Expr:
    """Half the difference of e^x and e^-x, or for small x its series x + x³/3! + x⁵/5! + ..."""
    dtype = x.struct_info.dtype
    square, series = relax.op.multiply(x, x), relax.const(1, dtype)
    for product in (110, 72, 42, 20, 6):  # (2n)(2n + 1), from the last term to the first
        series = relax.op.add(
            relax.const(1, dtype), relax.op.multiply(relax.op.divide(square, relax.const(product, dtype)), series)
        )
    large = relax.op.subtract(_half_exp(x, 1), _half_exp(x, -1))
    is_small = relax.op.less(relax.op.abs(x), relax.const(_SMALL, dtype))
    return relax.op.where(is_small, relax.op.multiply(x, series), large)


def _half_exp(x: relax.Expr, sign: int) -> relax.Expr:
    """Half of e^(sign x), as a product of two square roots: e^x overflows before its half does.

    LLVM, which may reorder products, would square the root first, but for the minimum.
    """
    dtype = x.struct_info.dtype
    root = relax.op.exp(relax.op.multiply(x, relax.const(0.5 * sign, dtype)))
    half = relax.op.minimum(relax.op.multiply(root, relax.const(0.5, dtype)), relax.const(_LARGE, dtype))
    return relax.op.multiply(half, root)


_EXPANSIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "relax.cosh": _cosh,
    "relax.sinh": _sinh,
    "relax.tan": _tan,
}
