"""Scatters: whole rows at a time where all elements of a row go to the same place, threads side by side."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import dtype, is_call, known_dims, shape, static
from tkc.passes.graph.rewriting import rewritten, targets_gpu
from tkc.passes.lowering.gpu_scatter_function import gpu_scatter_function
from tkc.passes.lowering.indexed_elements import before_broadcast, equal_but_along
from tkc.passes.lowering.scatter_function import REDUCTIONS, Tensor, scatter_function


@tvm.transform.module_pass(opt_level=0, name="Scatters")
class Scatters:
    """Replaces ``scatter_elements`` by functions that are scheduled.

    TVM's divide the number of every element by the tensor's sizes, go along the axis before they go along rows, and
    read one index for each element where all of a row have the same. Equal indices are written in their order. Rows
    that were gathered, as the messages along a graph's edges or the members of bags, are read where they come from.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such functions; others are left to TVM where sizes are not known to fit."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
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
        tensors = {name: Tensor(shape(operand), dtype(operand)) for name, operand in operands.items()}
        make = gpu_scatter_function if targets_gpu() else scatter_function
        function = make(tensors, axis, str(call.attrs.reduction), of_rows=of_rows, clamps=clamps)
        name = self.builder_.add_func(function, "scatter")
        return relax.call_tir(name, [*operands.values()], out_sinfo=x.struct_info)

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


def _is_along(axis: int, rows: relax.Expr, counts: tuple[tirx.PrimExpr, ...]) -> bool:
    """Whether ``rows`` are indices along ``axis`` alone, which all along the other axes have."""
    sizes = known_dims(rows.struct_info)
    if sizes is None or len(sizes) != len(counts):
        return False
    return all(static(size) == 1 for i, size in enumerate(sizes) if i != axis) and equal_but_along(
        None, sizes[axis : axis + 1], counts[axis : axis + 1]
    )
