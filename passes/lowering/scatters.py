"""Scatters: whole rows at a time where all elements of a row go to the same place, threads side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import dtype, is_call, known_dims, shape, static
from tkc.passes.graph.layout import product
from tkc.passes.graph.rewriting import rewritten, targets_gpu
from tkc.passes.lowering.gpu_scatter_function import gpu_scatter_function
from tkc.passes.lowering.gpu_sorted_scatter import places_of, sorted_scatter_function
from tkc.passes.lowering.indexed_elements import before_broadcast, equal_but_along
from tkc.passes.lowering.scatter_function import REDUCTIONS, Tensor, scatter_function

_LEAST_SORTED = 1 << 16
"""How many indices are followed where a sort takes less time than to look at all of them for each place. On an H200
8,192 rows take 73 us without one and 194 with it, a million rows 3.1 ms and 0.7. An open number counts as many."""


@tvm.transform.module_pass(opt_level=0, name="Scatters")
class Scatters:
    """Replaces ``scatter_elements`` by functions that are scheduled.

    TVM's divide the number of every element by the tensor's sizes, go along the axis before they go along rows, and
    read one index for each element where all of a row have the same. Equal indices are written in their order. Rows
    that were gathered, as the messages along a graph's edges or the members of bags, are read where they come from.
    On GPUs what is written is put ``in_order`` of its places before, by a sort, if that is fast.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such functions; others are left to TVM where sizes are not known to fit."""
        return rewritten(module, lambda module: _Rewriting(module, in_order=self._in_order and targets_gpu()))


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule, *, in_order: bool) -> None:
        super().__init__(module)
        self._in_order = in_order

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_call(call, "relax.scatter_elements") or call.attrs.reduction not in REDUCTIONS:
            return call
        x, indices, values = call.args
        sizes, counts, written = (known_dims(each.struct_info) for each in call.args)
        if sizes is None or counts is None or written is None:
            return call
        axis = int(call.attrs.axis) % len(sizes)
        if not (equal_but_along(axis, sizes, counts) and equal_but_along(None, counts, written)):
            return call
        rows = before_broadcast(self, indices)
        of_rows = _is_along(axis, rows, counts)
        if of_rows:
            indices = rows
        given = self._before_clamping(indices, sizes[axis])
        clamps = not given.same_as(indices)
        operands = {"x": x, "indices": given, "values": values}
        if of_rows and axis == 0 and (gathered := self._before_gathering(values)) is not None:
            operands["values"], operands["sources"] = gathered
        followed = static(counts[axis] if of_rows else product(counts))
        if self._in_order and (followed is None or followed >= _LEAST_SORTED):
            places, order = self._sorted(operands.pop("indices"), sizes, axis, of_rows=of_rows, clamps=clamps)
            operands = {"x": operands.pop("x"), "places": places, "order": order, **operands}
            function, kept = sorted_scatter_function(
                _described(operands), axis, str(call.attrs.reduction), of_rows=of_rows
            )
            results = [x.struct_info, relax.TensorStructInfo(kept.shape, kept.dtype)]
            name = self.builder_.add_func(function, "scatter")
            return relax.TupleGetItem(self.builder_.emit(relax.call_tir(name, [*operands.values()], results)), 0)
        make = gpu_scatter_function if targets_gpu() else scatter_function
        function = make(_described(operands), axis, str(call.attrs.reduction), of_rows=of_rows, clamps=clamps)
        name = self.builder_.add_func(function, "scatter")
        return relax.call_tir(name, [*operands.values()], out_sinfo=x.struct_info)

    def _sorted(
        self, indices: relax.Expr, sizes: Sequence[tirx.PrimExpr], axis: int, *, of_rows: bool, clamps: bool
    ) -> tuple[relax.Expr, relax.Expr]:
        """The places that ``indices`` along ``axis`` name, in order, and where each of them was."""
        most = static(sizes[axis] if of_rows else product(sizes))
        to = "int32" if most is not None and most < 1 << 31 else "int64"
        options = {"of_rows": of_rows, "clamps": clamps, "primfunc_name_hint": "places"}
        places = self.builder_.emit(
            self.builder_.call_te(
                lambda indices, length, **given: places_of(indices, length, axis, to, **given),
                indices,
                sizes[axis],
                **options,
            )
        )
        order = self.builder_.emit(relax.op.argsort(places, 0, dtype="int64"))
        return self.builder_.emit(relax.op.gather_elements(places, order, 0)), order

    def _before_gathering(self, values: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
        """The tensor whose rows ``values`` are, and which of its rows; ``None`` if they are none's."""
        call = self.lookup_binding(values) if isinstance(values, relax.Var) else values
        if not is_call(call, "relax.take") or str(call.attrs.mode) != "clip" or call.attrs.axis is None:
            return None
        table, rows = call.args
        is_of_rows = int(call.attrs.axis) == 0 and rows.struct_info.ndim == 1
        return (table, rows) if is_of_rows and known_dims(table.struct_info) and known_dims(rows.struct_info) else None

    def _before_clamping(self, indices: relax.Expr, size: tirx.PrimExpr) -> relax.Expr:
        """What ``indices`` were before each was brought between 0 and ``size - 1``; themselves if they were not."""
        reshaped = self.lookup_binding(indices) if isinstance(indices, relax.Var) else indices
        if is_call(reshaped, "relax.reshape"):
            given = self._before_clamping(reshaped.args[0], size)
            if given.same_as(reshaped.args[0]):
                return indices
            return self.builder_.emit(relax.op.reshape(given, shape(indices)))
        least = self._bounded(indices, "relax.minimum", None if (known := static(size)) is None else known - 1)
        given = None if least is None else self._bounded(least, "relax.maximum", 0)
        return indices if given is None else given

    def _bounded(self, value: relax.Expr, bound: str, number: int | None) -> relax.Expr | None:
        """What ``value`` is the maximum, or minimum, of and ``number``; ``None`` if it is not."""
        call = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        if not is_call(call, bound) or not isinstance(call.args[1], relax.Constant) or call.args[1].struct_info.ndim:
            return None
        return call.args[0] if int(call.args[1].data.numpy()) == number else None


def _described(operands: Mapping[str, relax.Expr]) -> dict[str, Tensor]:
    return {name: Tensor(shape(operand), dtype(operand)) for name, operand in operands.items()}


def _is_along(axis: int, rows: relax.Expr, counts: tuple[tirx.PrimExpr, ...]) -> bool:
    """Whether ``rows`` are indices along ``axis`` alone, which all along the other axes have."""
    sizes = known_dims(rows.struct_info)
    if sizes is None or len(sizes) != len(counts):
        return False
    return all(static(size) == 1 for i, size in enumerate(sizes) if i != axis) and equal_but_along(
        None, sizes[axis : axis + 1], counts[axis : axis + 1]
    )
