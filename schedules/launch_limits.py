"""What a launch on a GPU may ask for: shared memory, thread blocks, common reductions."""

from __future__ import annotations

from math import prod

import tvm
from tvm import DataType, s_tir, tirx
from tvm.target import Target

from tkc.kernels.devices import WIDEST_GRID
from tkc.schedules.blocks import nodes, static, thread_tag
from tkc.schedules.lowering.thread_reductions import UnreducedError, reduce_among_threads

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


class OpenMemoryError(ValueError):
    """A scheduled function takes memory on the chip whose size is only known at run time."""


def exceeded_limit(func: tirx.PrimFunc, target: Target) -> str | None:
    """What ``func``, scheduled, asks for and no launch on ``target`` can have, as a clause; ``None`` if nothing."""
    if (blocks := _known_blocks(func)) > WIDEST_GRID:
        return f"it launches {blocks} blocks, where a grid has up to {WIDEST_GRID}"
    try:
        reduce_among_threads(func)
    except UnreducedError as error:
        return f"threads cannot reduce as it asks: {error}"
    if not any(_is_large_or_open(buffer) for buffer in _on_chip(func)):
        return None
    available = int(target.attrs["max_shared_memory_per_block"])
    compact = _on_chip(_COMPACTED(tvm.IRModule({"main": func}))["main"])
    if (clause := _open_memory(compact)) is not None:
        return clause
    wanted = sum((_elements(buffer) or 0) * DataType(buffer.dtype).itemsize for buffer in compact if _is_shared(buffer))
    return None if wanted <= available else f"it takes {wanted} bytes of shared memory, where a block has {available}"


def require_known_memory(func: tirx.PrimFunc) -> None:
    """Raise :class:`OpenMemoryError` if ``func``, in the form from which code is generated, takes memory of a block or
    a thread that only a call knows the size of: TVM cannot tell where quotients had to be hidden from it."""
    if any(_elements(buffer) is None for buffer in _on_chip(func)):
        clause = _open_memory(_on_chip(_COMPACTED(tvm.IRModule({"main": func}))["main"]))
        if clause is not None:
            raise OpenMemoryError(clause)


def _open_memory(compact: list[tirx.Buffer]) -> str | None:
    for buffer in compact:
        if _elements(buffer) is None:
            memory = "shared memory" if _is_shared(buffer) else "registers"
            return f"it keeps a number of elements in {memory} that is only known at run time"
    return None


def _known_blocks(func: tirx.PrimFunc) -> int:
    """How many blocks the largest launch has along those axes whose lengths are known."""
    extents: dict[str, int] = {}
    for loop in (node for node in nodes(func.body) if isinstance(node, tirx.For)):
        tag, blocks = thread_tag(loop) or "", static(loop.extent)
        if tag.startswith("blockIdx.") and blocks is not None:
            extents[tag] = max(extents.get(tag, 1), blocks)
    return prod(extents.values())


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
