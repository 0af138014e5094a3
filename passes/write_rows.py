"""Writes the new elements of updated tensors where the old ones are, instead of making whole new tensors."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Range
from tvm.ir.transform import PassContext
from tvm.tirx.analysis import undefined_vars

from tkc.passes.graph import Graph, dtype, shape
from tkc.passes.row_writes import Element, NotWritten, Write, row_writes
from tkc.passes.updates import Update, updates

_OPAQUE_PATTERN = 8  # relax's OpPatternKind.kOpaque: operator fusion leaves such functions alone


@tvm.transform.module_pass(opt_level=0, name="WriteRows")
class WriteRows:
    """Makes ``call_tir_inplace`` of what gives updated tensors their new values by writing some of their elements.

    From here on such a call stands for the tensor after the write, and its first argument for the one before, until
    :class:`~tkc.passes.update_in_place.UpdateInPlace` sees to it that nothing reads that later.
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
        read = [write.source, *([] if write.position is None else [write.position])]
        function, sizes = _write_function(value, write, read)
        name = self._builder.add_func(function, "write_rows")
        arguments = [value, *(element.tensor for element in read)]
        return relax.call_tir_inplace(name, arguments, 0, value.struct_info, sizes or None)


def _write_function(
    old: relax.Expr, write: Write, read: Sequence[Element]
) -> tuple[tirx.PrimFunc, list[tirx.PrimExpr]]:
    """A function that writes into its first tensor from the others, those of ``read``; and the sizes that it takes."""
    shapes = [shape(old), *(shape(element.tensor) for element in read)]
    names = ("out", "rows", "positions")
    loops = [var for var, _ in write.loops]
    inner = [*loops, *([] if write.row is None else [write.row])]
    used = [*(dim for dims in shapes for dim in dims), *(extent for _, extent in write.loops), *write.target]
    used += [entry for element in read for entry in element.index]
    sizes = list(
        dict.fromkeys(v for expr in used for v in undefined_vars(expr) if not any(v.same_as(i) for i in inner))
    )
    own = {size: tirx.Var(size.name, "int64") for size in sizes}

    def here(expr: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.stmt_functor.substitute(expr, own)

    dtypes = (dtype(old), *(dtype(element.tensor) for element in read))
    buffers = [
        tirx.decl_buffer([here(dim) for dim in dims], type_, name)
        for dims, type_, name in zip(shapes, dtypes, names, strict=False)
    ]
    iterators = [tirx.IterVar(Range(0, here(extent)), tirx.Var(v.name, "int64"), 0) for v, extent in write.loops]
    own |= {var: iterator.var for var, iterator in zip(loops, iterators, strict=True)}
    elements = [
        tirx.BufferLoad(buffer, [here(entry) for entry in element.index])
        for buffer, element in zip(buffers[1:], read, strict=True)
    ]
    written = [_point(here(entry)) for entry in write.target]
    if write.row is not None:
        written = [
            Range(0, dim) if any(v.same_as(write.row) for v in undefined_vars(entry)) else region
            for dim, entry, region in zip(buffers[0].shape, write.target, written, strict=True)
        ]
        own[write.row] = elements[1].astype("int64")
    block = tirx.SBlock(
        iter_vars=iterators,
        reads=[tirx.BufferRegion(load.buffer, list(map(_point, load.indices))) for load in elements],
        writes=[tirx.BufferRegion(buffers[0], written)],
        name_hint="write_rows",
        body=tirx.BufferStore(buffers[0], elements[0], [here(entry) for entry in write.target]),
    )
    counters = [tirx.Var(var.name, "int64") for var in loops]
    body: tirx.Stmt = tirx.SBlockRealize(counters, True, block)
    for counter, iterator in zip(reversed(counters), reversed(iterators), strict=True):
        body = tirx.For(counter, 0, iterator.dom.extent, tirx.ForKind.SERIAL, body)
    root = tirx.SBlockRealize([], True, tirx.SBlock([], [], [], "root", body))
    shown = {dim for buffer in buffers for dim in buffer.shape if isinstance(dim, tirx.Var)}
    given = [size for size in sizes if own[size] not in shown]
    handles = [tirx.Var(f"{buffer.name}_handle", "handle") for buffer in buffers]
    function = tirx.PrimFunc(
        [*handles, *(own[size] for size in given)], root, buffer_map=dict(zip(handles, buffers, strict=True))
    )
    return function.with_attrs({"op_pattern": _OPAQUE_PATTERN, "tirx.noalias": True, "s_tir": True}), given


def _point(index: tirx.PrimExpr) -> Range:
    return Range.from_min_extent(index, 1)
