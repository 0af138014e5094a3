"""Results that pass from one GPU kernel of a function to the next, in float32 instead of bfloat16.

TVM 0.25 allocates them on the host, where it turns bfloat16 into integers and loses track of such a buffer between the
host's code and the kernels'. Sums and comparisons only gain precision.
"""

from __future__ import annotations

from tvm import tirx

from tkc.schedules.blocks import nodes
from tkc.schedules.buffers import over_buffers


def widen_intermediates(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its bfloat16 allocations in global memory as float32, converted at each load and store."""
    wide = {
        buffer: tirx.decl_buffer(buffer.shape, "float32", buffer.name, scope=buffer.scope())
        for block in nodes(func.body)
        if isinstance(block, tirx.SBlock)
        for buffer in block.alloc_buffers
        if buffer.dtype == "bfloat16" and buffer.scope() == "global"
    }
    return func.with_body(over_buffers(func.body, wide)) if wide else func
