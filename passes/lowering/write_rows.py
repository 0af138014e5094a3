"""Writes the new elements of updated tensors where the old ones are, instead of making whole new tensors."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.updates import Update, updates
from tkc.passes.lowering.row_writes import NotWritten, Write, row_writes
from tkc.passes.lowering.write_function import tensors_read, write_function


@tvm.transform.module_pass(opt_level=0, name="WriteRows")
class WriteRows:
    """Makes ``call_tir_inplace`` of what gives updated tensors their new values by writing some of their elements.

    From here on such a call stands for the tensor after the write, and its first argument for the one before, until
    :class:`~tkc.passes.lowering.update_in_place.UpdateInPlace` sees to it that nothing reads that later.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with functions that write rows."""
        builder = relax.BlockBuilder(module)
        for name, function in module.functions_items():
            if isinstance(function, relax.Function) and updates(function):
                builder.update_func(name, _Writer(builder, Graph(module, function)).rewritten())
        return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(builder.get()))


class _Writer:
    """Rewrites one function, whose functions go to ``builder``."""

    def __init__(self, builder: relax.BlockBuilder, graph: Graph) -> None:
        self._builder = builder
        self._graph = graph

    def rewritten(self) -> relax.Function:
        """The graph's function with its writes in place."""
        function = self._graph.function
        replaced: dict[relax.Expr, list[relax.Binding]] = {}
        for update in updates(function):
            variable = self._graph.variable(self._graph.value(update.value))
            if variable not in replaced and (bindings := self._writes(update, variable)):
                replaced[variable] = bindings
        blocks = [
            type(block)([new for old in block.bindings for new in replaced.get(old.var, [old])])
            for block in function.body.blocks
        ]
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)

    def _writes(self, update: Update, variable: relax.Var) -> list[relax.Binding]:
        """Bindings that write the new elements, the last of which binds ``variable``; none where that is impossible."""
        try:
            writes = row_writes(self._graph, update.target, update.value)
        except NotWritten:
            return []
        bindings, value = [], update.target
        for position, write in enumerate(writes):
            last = position == len(writes) - 1
            call = self._call(value, write)
            value = variable if last else relax.DataflowVar(f"{variable.name_hint}_{position}", value.struct_info)
            bindings.append(relax.VarBinding(value, call))
        return bindings

    def _call(self, value: relax.Var, write: Write) -> relax.Call:
        function, sizes = write_function(value, write)
        name = self._builder.add_func(function, "write_rows")
        return relax.call_tir_inplace(name, [value, *tensors_read(write)], 0, value.struct_info, sizes or None)
