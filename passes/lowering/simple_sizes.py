"""Brings symbolic sizes to their simplest form, so that the sizes of one tensor are written in one way."""

from __future__ import annotations

import tvm
from tvm import arith, relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr import _update_struct_info
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx.stmt_functor import ir_transform, post_order_visit, substitute
from tvm_ffi import structural_equal

from tkc.contracts import SIGNED
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="SimpleSizes")
class SimpleSizes:
    """Simplifies the sizes of operators' results, and those that operators take as arguments.

    TVM 0.25 infers ``n * 4 + 1 + 1`` for a padded axis, and simplifies the sizes of the TensorIR function that pads.
    Where the two meet in one fused function, ``FuseTIR`` takes them for different buffers and fails.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such sizes simplified."""
        return rewritten(module, _Simplifying)


@mutator
class _Simplifying(PyExprMutator):
    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        simple = simplest(shape.values)
        return shape if simple is None else relax.ShapeExpr(simple)

    def visit_prim_value_(self, number: relax.PrimValue) -> relax.Expr:
        # The bounds of slices, from which TVM infers sizes.
        simple = simplest([number.value]) if number.value.dtype == "int64" else None
        return number if simple is None else relax.PrimValue(simple[0])

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.builder_.normalize(super().visit_call_(call))
        return with_simple_sizes(call) if isinstance(call, relax.Call) else call


def with_simple_sizes(call: relax.Call) -> relax.Call:
    """``call``, if it is one of an operator with a tensor for its result, with the sizes of that simplified."""
    info = call.struct_info
    if not (isinstance(call.op, Op) and isinstance(info, relax.TensorStructInfo)):
        return call
    simple = simplest(info.shape.values) if isinstance(info.shape, relax.ShapeExpr) else None
    if simple is None:
        return call
    changed = relax.Call(call.op, call.args, call.attrs, call.sinfo_args)
    _update_struct_info(changed, relax.TensorStructInfo(simple, info.dtype, info.vdevice))
    return changed


def simplest(sizes: list[tirx.PrimExpr]) -> list[tirx.PrimExpr] | None:
    """``sizes`` in their simplest form; ``None`` where they have it already.

    Variables are not negative but for those that are named so. So ``max(n, 0)``, which TVM infers for a slice, is the
    ``n`` that other operators have, and ``min(n // 2, n)``, where a slice ends, ``n // 2``.
    """
    if all(isinstance(size, tirx.IntImm | tirx.Var) for size in sizes):
        return None
    analyzer = arith.Analyzer()
    for variable in {variable for size in sizes for variable in tirx.analysis.undefined_vars(size)}:
        if not variable.name.endswith(SIGNED):
            analyzer.update(variable, arith.ConstIntBound(0, arith.ConstIntBound.POS_INF))
    simple = [_without_extremes(analyzer.simplify(size), analyzer) for size in sizes]
    return None if all(map(structural_equal, simple, sizes)) else simple


def _without_extremes(size: tirx.PrimExpr, analyzer: arith.Analyzer) -> tirx.PrimExpr:
    """``size``, simplified, with the smaller or the larger of two where it is known which that is."""
    extremes: list[tirx.PrimExpr] = []
    post_order_visit(size, lambda node: extremes.append(node) if isinstance(node, tirx.Min | tirx.Max) else None)
    decided = {node: found for node in extremes if (found := _decided(node, analyzer)) is not None}
    if not decided:
        return size
    return analyzer.simplify(ir_transform(tirx.Evaluate(size), None, decided.get, ["tirx.Min", "tirx.Max"]).value)


def _decided(node: tirx.PrimExpr, analyzer: arith.Analyzer) -> tirx.PrimExpr | None:
    for smaller, larger in ((node.a, node.b), (node.b, node.a)):
        if _is_nonnegative(larger - smaller, analyzer):
            return smaller if isinstance(node, tirx.Min) else larger
    return None


def _is_nonnegative(value: tirx.PrimExpr, analyzer: arith.Analyzer) -> bool:
    """Whether ``value`` is, which TVM cannot say of ``n - n // 2``: with ``n = 2 * q + r`` it can."""
    quotients: list[tirx.FloorDiv] = []
    post_order_visit(value, lambda node: quotients.append(node) if _is_quotient(node) else None)
    parts = {}
    for quotient in quotients:
        if quotient.a in parts or analyzer.const_int_bound(quotient.a).min_value < 0:
            continue
        whole, rest = tirx.SizeVar("whole", quotient.a.dtype), tirx.SizeVar("rest", quotient.a.dtype)
        analyzer.update(whole, arith.ConstIntBound(0, arith.ConstIntBound.POS_INF))
        analyzer.update(rest, arith.ConstIntBound(0, quotient.b.value - 1))
        parts[quotient.a] = whole * quotient.b + rest
    return bool(analyzer.can_prove(substitute(value, parts) >= 0))


def _is_quotient(node: tirx.PrimExpr) -> bool:
    """Of a variable by a number."""
    if not isinstance(node, tirx.FloorDiv) or not isinstance(node.a, tirx.Var):
        return False
    return isinstance(node.b, tirx.IntImm) and node.b.value > 0
