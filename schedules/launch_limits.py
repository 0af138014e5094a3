"""What a launch on a GPU may ask for: shared memory, thread blocks along each axis of its grid, common reductions."""

from __future__ import annotations

from math import prod

import tvm
from tvm import DataType, s_tir, tirx
from tvm.target import Target
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes, static, thread_tag
from tkc.schedules.lowering.thread_reductions import UnreducedError, reduce_among_threads

# CUDA Programming Guide, "Technical Specifications per Compute Capability": a grid may be 2^31 - 1 blocks wide.
_MOST_BLOCKS = {"blockIdx.y": 65535, "blockIdx.z": 65535}
_LAUNCHING = ["tirx.For", "tirx.AttrStmt"]
_EXCHANGED = {"blockIdx.x": "blockIdx.y", "blockIdx.y": "blockIdx.x"}

# Up to where buffers have the size that is allocated: what is left of them where their blocks were computed at a loop.
_COMPACTED = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


def exceeded_limit(func: tirx.PrimFunc, target: Target) -> str | None:
    """What ``func``, scheduled, asks for and no launch on ``target`` can have, as a clause; ``None`` if nothing."""
    for loop in (node for node in nodes(func.body) if isinstance(node, tirx.For)):
        most, blocks = _MOST_BLOCKS.get(thread_tag(loop) or ""), static(loop.extent)
        if most is not None and blocks is not None and blocks > most:
            return f"it launches {blocks} blocks along {thread_tag(loop)}, which takes {most}"
    try:
        reduce_among_threads(func)
    except UnreducedError as error:
        return f"threads cannot reduce as it asks: {error}"
    if not any(_is_large_or_open(buffer) for buffer in _on_chip(func)):
        return None
    available = int(target.attrs["max_shared_memory_per_block"])
    compact = _on_chip(_COMPACTED(tvm.IRModule({"main": func}))["main"])
    for buffer in compact:
        if _elements(buffer) is None:
            memory = "shared memory" if _is_shared(buffer) else "registers"
            return f"it keeps a number of elements in {memory} that is only known at run time"
    wanted = sum((_elements(buffer) or 0) * DataType(buffer.dtype).itemsize for buffer in compact if _is_shared(buffer))
    return None if wanted <= available else f"it takes {wanted} bytes of shared memory, where a block has {available}"


def widest_first(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, one of TVM's scheduled scans or sorts, whose grids are as high as there are rows, with those along x.

    Grids may be much wider than high. The other axis counts the parts of one row, of 512 elements or more: rows of
    more than 33 million have too many. Grids known to be low enough stay as they are.
    """

    def in_launch(statement: tirx.Stmt) -> tirx.Stmt | None:
        if thread_tag(statement) is None:
            return None
        high = any(thread_tag(node) == "blockIdx.y" and not _is_low(node) for node in nodes(statement))
        return ir_transform(statement, None, _exchanged, _LAUNCHING) if high else statement

    return func.with_body(ir_transform(func.body, in_launch, None, _LAUNCHING))


def _exchanged(statement: tirx.Stmt) -> tirx.Stmt | None:
    if thread_tag(statement) not in _EXCHANGED:
        return None
    if isinstance(statement, tirx.AttrStmt):
        return tirx.AttrStmt(_renamed(statement.node), statement.attr_key, statement.value, statement.body)
    s = statement
    return tirx.For(s.loop_var, s.min, s.extent, s.kind, s.body, _renamed(s.thread_binding), s.annotations)


def _is_low(launch: tirx.AttrStmt | tirx.For) -> bool:
    blocks = static(launch.value if isinstance(launch, tirx.AttrStmt) else launch.extent)
    return blocks is not None and blocks <= _MOST_BLOCKS["blockIdx.y"]


def _renamed(axis: tirx.IterVar) -> tirx.IterVar:
    return tirx.IterVar(axis.dom, axis.var, axis.iter_type, _EXCHANGED[axis.thread_tag])


def _on_chip(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """What ``func`` allocates in shared memory and in registers, in blocks."""
    blocks = (node for node in nodes(func.body) if isinstance(node, tirx.SBlock))
    return [buffer for block in blocks for buffer in block.alloc_buffers if _is_shared(buffer) or _is_local(buffer)]


def _is_shared(buffer: tirx.Buffer) -> bool:
    return str(buffer.scope()).startswith("shared")


def _is_local(buffer: tirx.Buffer) -> bool:
    return str(buffer.scope()).startswith("local")


def _is_large_or_open(buffer: tirx.Buffer) -> bool:
    """Whether a limit may be exceeded: by anything shared, and by registers whose number is not known yet."""
    return _is_shared(buffer) or _elements(buffer) is None


def _elements(buffer: tirx.Buffer) -> int | None:
    """How many there are; ``None`` if only a call knows."""
    sizes = [known for size in buffer.shape if (known := static(size)) is not None]
    return prod(sizes) if len(sizes) == len(buffer.shape) else None
