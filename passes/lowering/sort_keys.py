"""Sorts floats by integers in the same order, in which NaN is above infinity, and narrow integers by wider ones.

TVM's sorts compare floats. A NaN is neither below nor above anything, which is no order at all: the C++ library's
``stable_sort``, which runs on the CPU, may then do anything, and a merge on a GPU leaves other elements unsorted.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten, targets_gpu

_SIGNED = {"float32": "int32", "float64": "int64"}
_SORTED = ("int32", "int64")
"""What TVM sorts as it is."""


@tvm.transform.module_pass(opt_level=0, name="SortKeys")
class SortKeys:
    """Gives ``sort``, ``argsort`` and ``topk`` of floats and narrow integers keys that TVM sorts.

    Values are gathered by position.

    NaN sorts last, and is first among the largest; -0.0 and 0.0 are equal: PyTorch's and NumPy's order.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which only integers are sorted."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, Op) else ""
        if name not in _SORTS:
            return call
        x, attrs = call.args[0], call.attrs
        axis, last = int(attrs.axis) % x.struct_info.ndim, x.struct_info.ndim - 1
        if axis == last or not targets_gpu():
            return call if x.struct_info.dtype in _SORTED else self._sorted(name, x, axis, attrs)
        # TVM would transpose within the function that sorts, where a single thread of the GPU does it.
        order = [*range(last + 1)]
        order[axis], order[last] = last, axis
        found = self._sorted(name, self.builder_.emit(op.permute_dims(x, order)), last, attrs)
        if not isinstance(call.struct_info, relax.TupleStructInfo):
            return op.permute_dims(self.builder_.emit(found), order)
        found = self.builder_.emit(found)
        parts = [self.builder_.emit(relax.TupleGetItem(found, number)) for number in range(2)]
        return relax.Tuple([self.builder_.emit(op.permute_dims(part, order)) for part in parts])

    def _sorted(self, name: str, x: relax.Expr, axis: int, attrs: tvm.ir.Attrs) -> relax.Expr:
        """What the operator ``name`` makes of ``x`` along ``axis``."""
        is_sorted = x.struct_info.dtype in _SORTED
        keys = x if is_sorted else self._keys(x)
        if name == "relax.argsort":
            return op.argsort(keys, axis, attrs.descending, attrs.dtype)
        if name == "relax.sort":
            if is_sorted:
                return op.sort(keys, axis, attrs.descending)
            order = self.builder_.emit(op.argsort(keys, axis, attrs.descending, "int64"))
            return op.gather_elements(x, order, axis)
        if is_sorted:
            return op.topk(keys, attrs.k, axis, attrs.ret_type, attrs.largest, attrs.dtype)
        indices = op.topk(keys, attrs.k, axis, "indices", attrs.largest, attrs.dtype)
        if attrs.ret_type == "indices":
            return indices
        indices = self.builder_.emit(indices)
        values = self.builder_.emit(op.gather_elements(x, indices, axis))
        return values if attrs.ret_type == "values" else relax.Tuple([values, indices])

    def _keys(self, x: relax.Expr) -> relax.Expr:
        if x.struct_info.dtype == "uint64":
            return self.builder_.emit(self.builder_.call_te(_signed_keys, x, primfunc_name_hint="sort_keys"))
        if "float" not in x.struct_info.dtype:
            return self.builder_.emit(op.astype(x, "int64" if "32" in x.struct_info.dtype else "int32"))
        if x.struct_info.dtype not in _SIGNED:
            x = self.builder_.emit(op.astype(x, "float32"))
        return self.builder_.emit(self.builder_.call_te(_sort_keys, x, primfunc_name_hint="sort_keys"))


_SORTS = ("relax.sort", "relax.argsort", "relax.topk")


def _signed_keys(x: te.Tensor) -> te.Tensor:
    """Each ``uint64`` less 2^63, as an ``int64``: the same order."""
    half = tirx.const(1 << 63, "uint64")
    return te.compute(x.shape, lambda *i: tirx.reinterpret("int64", tirx.bitwise_xor(x(*i), half)), name="sort_keys")


def _sort_keys(x: te.Tensor) -> te.Tensor:
    """The bits of each number as an integer, those below the sign inverted where it is negative: the same order."""
    dtype = _SIGNED[x.dtype]
    most, zero = tirx.max_value(dtype), tirx.const(0, dtype)

    def key(*index: tirx.Var) -> tirx.PrimExpr:
        value = x(*index)
        bits = tirx.reinterpret(dtype, value)
        ordered = tirx.Select(bits < zero, tirx.bitwise_xor(bits, most), bits)
        number = tirx.Select(value == tirx.const(0, x.dtype), zero, ordered)
        return tirx.Select(tirx.isnan(value), most, number)

    return te.compute(x.shape, key, name="sort_keys")
