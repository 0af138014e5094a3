"""GPU memory on the chip in functions with unknown sizes: a staging buffer holds one tile, whatever the tensor's size.

TVM sizes a staging buffer by the part of the tensor that the tile touches, which at the edge of an unknown size is no
constant. Addressed modulo the tile, the buffer has a constant size, and no two elements of a tile share a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import arith, tirx
from tvm.tirx.stmt_functor import substitute

from tkc.schedules.blocks import nodes, static
from tkc.schedules.buffers import Indices, over_buffers


def fold_staging_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for a GPU, with its buffers on the chip of constant size wherever its tiles are.

    A buffer whose tiles have no constant size stays as it is.
    """
    staged = [
        buffer
        for block in nodes(func.body)
        if isinstance(block, tirx.SBlock)
        for buffer in block.alloc_buffers
        if buffer.scope() != "global" and not all(map(_is_known, buffer.shape))
    ]
    if not staged:
        return func
    accesses = list(_accesses(func.body, (), {}))
    folded = {}
    for buffer in staged:
        shape = _tile(buffer, [access for access in accesses if access.buffer.same_as(buffer)])
        if shape is not None:
            folded[buffer] = tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=buffer.scope())
    return func.with_body(over_buffers(func.body, folded, _folded_indices(folded))) if folded else func


@dataclass(frozen=True)
class _Access:
    """Where a block touches a buffer: the indices over the variables of the loops around it, outermost first."""

    buffer: tirx.Buffer
    indices: tuple[tirx.PrimExpr, ...]
    loops: tuple[tirx.For, ...]


def _accesses(
    node: tirx.Stmt, loops: tuple[tirx.For, ...], bindings: Mapping[tirx.Var, tirx.PrimExpr]
) -> Iterator[_Access]:
    """Every load and store in ``node``, ``bindings`` being the iterators of the blocks around it."""
    if isinstance(node, tirx.For):
        yield from _accesses(node.body, (*loops, node), bindings)
    elif isinstance(node, tirx.SeqStmt):
        for part in node.seq:
            yield from _accesses(part, loops, bindings)
    elif isinstance(node, tirx.SBlockRealize):
        values = [substitute(value, bindings) for value in node.iter_values]
        iterators = [iterator.var for iterator in node.block.iter_vars]
        inner = {**bindings, **dict(zip(iterators, values, strict=True))}
        for part in (node.block.init, node.block.body):
            if part is not None:
                yield from _accesses(part, loops, inner)
    else:
        for part in nodes(node):
            if isinstance(part, tirx.BufferLoad | tirx.BufferStore):
                yield _Access(part.buffer, tuple(substitute(index, bindings) for index in part.indices), loops)


def _tile(buffer: tirx.Buffer, accesses: list[_Access]) -> list[tirx.PrimExpr] | None:
    """The shape of the part of ``buffer`` that is in use at a time; ``None`` if that is not constant."""
    shared = buffer.scope().startswith("shared")
    common = set.intersection(*({loop.loop_var for loop in access.loops} for access in accesses))
    analyzer = arith.Analyzer()
    shape = list(buffer.shape)
    for axis, extent in enumerate(buffer.shape):
        if _is_known(extent):
            continue
        bounds = []
        for access in accesses:
            moving = [loop for loop in access.loops if loop.loop_var not in common or (shared and _in_block(loop))]
            ranges = {loop.loop_var: arith.IntervalSet(loop.min, loop.min + loop.extent - 1) for loop in moving}
            bounds.append(analyzer.int_set(access.indices[axis], ranges))
        first = bounds[0].min_value
        starts = [static(analyzer.simplify(bound.min_value - first)) for bound in bounds]
        ends = [static(analyzer.simplify(bound.max_value - first)) for bound in bounds]
        known_starts, known_ends = ([bound for bound in each if bound is not None] for each in (starts, ends))
        if len(known_starts) < len(starts) or len(known_ends) < len(ends):
            return None
        shape[axis] = tirx.IntImm(extent.dtype, max(known_ends) - min(known_starts) + 1)
    return shape


def _is_known(extent: tirx.PrimExpr) -> bool:
    return static(extent) is not None


def _in_block(loop: tirx.For) -> bool:
    """Whether the iterations of ``loop`` share memory: threads of one block, virtual ones included."""
    return loop.thread_binding is not None and not loop.thread_binding.thread_tag.startswith("blockIdx")


def _folded_indices(folded: Mapping[tirx.Buffer, tirx.Buffer]) -> Indices:
    """Indices modulo the dimensions of the smaller buffer, along those that it has made smaller."""

    def indices(buffer: tirx.Buffer, found: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
        axes = zip(found, buffer.shape, folded[buffer].shape, strict=True)
        return [index if _is_known(whole) else tirx.floormod(index, tile) for index, whole, tile in axes]

    return indices
