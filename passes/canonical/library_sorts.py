"""Has PyTorch's library sort, and find the largest numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import ANY_OF_EQUAL, MAIN, SORT, TOP
from tkc.passes.graph.bindings import dtype, has_known_shape, shape
from tkc.passes.graph.library_calls import counted
from tkc.passes.graph.rewriting import rewritten, targets_gpu
from tkc.passes.graph.runtime_calls import runtime_call

LEAST_ELEMENTS = 1 << 13
"""On the CPU, under which generated code is as fast as a call, or faster: it sorts 64 floats in 16 us, a call in 37; 64
rows of 64 take 170 and 166. Symbolic sizes count as 64."""

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")
"""What PyTorch sorts."""

_WIDENED = (("float16", "float32"), ("bfloat16", "float32"))


@tvm.transform.module_pass(opt_level=0, name="LibrarySorts")
class LibrarySorts:
    """Replaces ``argsort``, ``sort`` and ``topk`` by calls of PyTorch's.

    Where numbers are gathered in the order of an ``argsort``, the call gives both. PyTorch's ``topk`` takes any of
    equal numbers; where the model asks for the first ones, all are sorted.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._takes_any = bool((module[MAIN].attrs or {}).get(ANY_OF_EQUAL, False))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, Op) else ""
        if name == "relax.gather_elements":
            return self._gathered(call)
        if name not in ("relax.argsort", "relax.sort", "relax.topk") or not _is_worth_a_call(call.args[0]):
            return call
        attrs, x = call.attrs, self._unwidened(call.args[0])
        if name == "relax.topk":
            return self._top(call)
        pair = self._sorted(x, int(attrs.axis), descending=bool(attrs.descending))
        if name == "relax.sort":
            return self._cast(relax.TupleGetItem(pair, 0), dtype(call))
        return self._cast(relax.TupleGetItem(pair, 1), dtype(call))

    def _sorted(self, x: relax.Expr, axis: int, *, descending: bool) -> relax.Var:
        """The numbers of ``x`` in order, and their places."""
        return self._pair(SORT, {"axis": axis % x.struct_info.ndim, "descending": descending}, x, shape(x))

    def _top(self, call: relax.Call) -> relax.Expr:
        """What ``call`` gives of the largest or smallest numbers and their places; of all in order, if it wants all."""
        attrs, x = call.attrs, self._unwidened(call.args[0])
        count, axis, largest = int(attrs.k), int(attrs.axis) % x.struct_info.ndim, bool(attrs.largest)
        if count < 1 or not self._takes_any:
            pair = self._sorted(x, axis, descending=largest)
        else:
            sizes = [*shape(x)[:axis], tirx.IntImm("int64", count), *shape(x)[axis + 1 :]]
            pair = self._pair(TOP, {"axis": axis, "count": count, "largest": largest}, x, sizes)
        parts = [self.builder_.emit(relax.TupleGetItem(pair, i)) for i in range(2)]
        if count >= 1 and not self._takes_any:
            parts = [op.strided_slice(part, [axis], [0], [count], assume_inbound=True) for part in parts]
        values, places = self._cast(parts[0], dtype(call.args[0])), self._cast(parts[1], str(attrs.dtype))
        if attrs.ret_type == "both":
            return relax.Tuple([self.builder_.emit(values), self.builder_.emit(places)])
        return values if attrs.ret_type == "values" else places

    def _pair(
        self, symbol: str, description: dict[str, int], x: relax.Expr, sizes: Sequence[tirx.PrimExpr]
    ) -> relax.Var:
        info = relax.TupleStructInfo([relax.TensorStructInfo(sizes, each) for each in (dtype(x), "int64")])
        text = relax.StringImm(json.dumps(description))
        return self.builder_.emit(relax.call_pure_packed(symbol, text, x, sinfo_args=[info]))

    def _gathered(self, call: relax.Call) -> relax.Expr:
        """What is gathered; a sort has given it already where it is what was sorted, in its order."""
        x, places = call.args
        place = self._value(places)
        if not isinstance(place, relax.TupleGetItem) or place.index != 1:
            return call
        symbol, operands = runtime_call(self._value(place.tuple_value)) or ("", [])
        if symbol != SORT or not operands[1].same_as(self._unwidened(x)):
            return call
        if json.loads(operands[0].value)["axis"] != int(call.attrs.axis) % x.struct_info.ndim:
            return call
        return self._cast(relax.TupleGetItem(place.tuple_value, 0), dtype(x))

    def _unwidened(self, x: relax.Expr) -> relax.Expr:
        """What ``x`` holds in float32, in which it has the same order; ``x`` if it holds nothing else."""
        made = self._value(x)
        is_cast = isinstance(made, relax.Call) and made.op == Op.get("relax.astype")
        return made.args[0] if is_cast and (dtype(made.args[0]), dtype(made)) in _WIDENED else x

    def _value(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` holds, behind variables."""
        while isinstance(expr, relax.Var) and (found := self.lookup_binding(expr)) is not None:
            expr = found
        return expr

    def _cast(self, value: relax.Expr, to: str) -> relax.Expr:
        value = self.builder_.emit(value)
        return value if dtype(value) == to else op.astype(value, to)


def _is_worth_a_call(x: relax.Expr) -> bool:
    if not has_known_shape(x) or not shape(x) or dtype(x) not in _DTYPES:
        return False
    return targets_gpu() or prod(map(counted, shape(x))) >= LEAST_ELEMENTS
