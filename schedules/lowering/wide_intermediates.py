"""Results that pass from one GPU kernel of a function to the next, in float32 instead of bfloat16.

TVM 0.25 allocates them on the host, where it turns bfloat16 into integers and loses track of such a buffer between the
host's code and the kernels'. Sums and comparisons only gain precision.
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.buffers import over_buffers

_COMBINED = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


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
    body = over_buffers(func.body, wide)
    return func.with_body(ir_transform(body, None, partial(_combined_wide, set(wide.values())), ["tirx.BufferStore"]))


def _combined_wide(wide: set[tirx.Buffer], store: tirx.BufferStore) -> tirx.BufferStore | None:
    """``x = max(x, y)`` of a buffer that is now wide, which combines in float32, as TVM finds reductions."""
    combined = store.value.value if isinstance(store.value, tirx.Cast) else None
    if store.buffer not in wide or not isinstance(combined, _COMBINED) or not isinstance(combined.a, tirx.Cast):
        return None
    so_far = combined.a.value
    if not isinstance(so_far, tirx.BufferLoad) or not so_far.buffer.same_as(store.buffer):
        return None
    value = type(combined)(so_far, combined.b.astype("float32"))
    return tirx.BufferStore(store.buffer, value, store.indices, store.predicate)
