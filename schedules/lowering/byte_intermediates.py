"""Numbers of eight bits that stay inside one CPU function, as bytes.

TVM 0.25 makes wider floats of such a buffer, and then fails on the bits that are stored there.
"""

from __future__ import annotations

from tvm import tirx

from tkc.schedules.blocks import nodes
from tkc.schedules.buffers import over_buffers


def store_bytes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its allocations of 8-bit floats as uint8, reinterpreted at each load and store."""
    stored = {
        buffer: tirx.decl_buffer(buffer.shape, "uint8", buffer.name, scope=buffer.scope())
        for block in nodes(func.body)
        if isinstance(block, tirx.SBlock)
        for buffer in block.alloc_buffers
        if buffer.dtype.startswith("float8")
    }
    return func.with_body(over_buffers(func.body, stored, convert=_reinterpreted)) if stored else func


def _reinterpreted(value: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    return tirx.reinterpret(dtype, value)
