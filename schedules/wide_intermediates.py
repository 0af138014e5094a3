"""Results that pass from one GPU kernel of a function to the next, in float32 instead of bfloat16.

TVM 0.25 allocates them on the host, where it turns bfloat16 into integers and loses track of such a buffer between the
host's code and the kernels'. Sums and comparisons only gain precision.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes


def widen_intermediates(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its bfloat16 allocations in global memory as float32, converted at each load and store."""
    wide = {
        buffer: tirx.decl_buffer(buffer.shape, "float32", buffer.name, scope=buffer.scope())
        for block in nodes(func.body)
        if isinstance(block, tirx.SBlock)
        for buffer in block.alloc_buffers
        if buffer.dtype == "bfloat16" and buffer.scope() == "global"
    }
    if not wide:
        return func

    def region(part: tirx.BufferRegion) -> tirx.BufferRegion:
        return tirx.BufferRegion(wide.get(part.buffer, part.buffer), part.region)

    def rewrite(node: object) -> object | None:
        if isinstance(node, tirx.BufferLoad) and node.buffer in wide:
            return tirx.BufferLoad(wide[node.buffer], node.indices).astype(node.dtype)
        if isinstance(node, tirx.BufferStore) and node.buffer in wide:
            lanes = node.value.dtype.removeprefix("bfloat16")
            return tirx.BufferStore(wide[node.buffer], node.value.astype(f"float32{lanes}"), node.indices)
        if isinstance(node, tirx.SBlock):
            return tirx.SBlock(
                node.iter_vars,
                [region(part) for part in node.reads],
                [region(part) for part in node.writes],
                node.name_hint,
                node.body,
                node.init,
                [wide.get(buffer, buffer) for buffer in node.alloc_buffers],
                node.match_buffers,
                node.annotations,
            )
        return None

    return func.with_body(
        ir_transform(func.body, None, rewrite, ["tirx.BufferLoad", "tirx.BufferStore", "tirx.SBlock"])
    )
