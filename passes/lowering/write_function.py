"""Builds the TensorIR function that writes some elements of a tensor in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.analysis import undefined_vars

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN, S_TIR
from tkc.passes.graph.bindings import dtype, shape
from tkc.passes.lowering.row_writes import Element, Write

_NAMES = ("out", "rows", "positions")


def tensors_read(write: Write) -> list[relax.Expr]:
    """The tensors that a function of ``write`` takes behind the one it writes into."""
    return [element.tensor for element in _elements(write)]


def write_function(old: relax.Expr, write: Write) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
    """A function that does ``write`` to its first tensor, one like ``old``; and the sizes that it takes at the end.

    No pass fuses it with others. It still needs a schedule.
    """
    tensors = [old, *tensors_read(write)]
    sizes = _sizes(write, tensors)
    own = {size: tirx.Var(size.name, "int64") for size in sizes}
    buffers = [
        tirx.decl_buffer([_renamed(dim, own) for dim in shape(tensor)], dtype(tensor), name)
        for tensor, name in zip(tensors, _NAMES, strict=False)
    ]
    shown = {dim for buffer in buffers for dim in buffer.shape if isinstance(dim, tirx.Var)}
    given = [size for size in sizes if own[size] not in shown]
    handles = [tirx.Var(f"{buffer.name}_handle", "handle") for buffer in buffers]
    function = tirx.PrimFunc(
        [*handles, *(own[size] for size in given)],
        _body(write, buffers, own),
        buffer_map=dict(zip(handles, buffers, strict=True)),
    )
    return function.with_attrs({OP_PATTERN: OPAQUE_PATTERN, NO_ALIAS: True, S_TIR: True}), given


def _elements(write: Write) -> list[Element]:
    return [write.source, *([] if write.position is None else [write.position])]


def _sizes(write: Write, tensors: Iterable[relax.Expr]) -> list[tirx.Var]:
    """The symbolic sizes in ``write``, once each."""
    inner = {write.row, *(var for var, _ in write.loops)}
    used = [dim for tensor in tensors for dim in shape(tensor)] + [extent for _, extent in write.loops]
    used += [*write.target, *(entry for element in _elements(write) for entry in element.index)]
    return list(dict.fromkeys(var for expr in used for var in undefined_vars(expr) if var not in inner))


def _body(write: Write, buffers: Sequence[tirx.Buffer], sizes: dict[tirx.Var, tirx.PrimExpr]) -> tirx.Stmt:
    iterators = [
        tirx.IterVar(Range(0, _renamed(extent, sizes)), tirx.Var(var.name, "int64"), tirx.IterVar.DataPar)
        for var, extent in write.loops
    ]
    names = {**sizes, **{var: own.var for (var, _), own in zip(write.loops, iterators, strict=True)}}
    loads = [
        tirx.BufferLoad(buffer, [_renamed(entry, names) for entry in element.index])
        for buffer, element in zip(buffers[1:], _elements(write), strict=True)
    ]
    if write.row is not None:
        names[write.row] = loads[1].astype("int64")
    target = [_renamed(entry, names) for entry in write.target]
    block = tirx.SBlock(
        iter_vars=iterators,
        reads=[_element(load.buffer, load.indices) for load in loads],
        writes=[_element(buffers[0], target)],
        name_hint="write_rows",
        body=tirx.BufferStore(buffers[0], loads[0], target),
    )
    counters = [tirx.Var(iterator.var.name, "int64") for iterator in iterators]
    nest: tirx.Stmt = tirx.SBlockRealize(counters, True, block)
    for counter, iterator in zip(reversed(counters), reversed(iterators), strict=True):
        nest = tirx.For(counter, 0, iterator.dom.extent, tirx.ForKind.SERIAL, nest)
    return tirx.SBlockRealize([], True, tirx.SBlock([], [], [], "root", nest))


def _renamed(expr: tirx.PrimExpr, names: dict[tirx.Var, tirx.PrimExpr]) -> tirx.PrimExpr:
    return tirx.stmt_functor.substitute(expr, names)


def _element(buffer: tirx.Buffer, index: Sequence[tirx.PrimExpr]) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [Range.from_min_extent(entry, 1) for entry in index])
