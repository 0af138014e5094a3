"""How attention kernels address their tensors, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.tirx import Buffer, BufferRegion, PrimExpr

from tkc.kernels.attention.parameters import AttentionParameters, Layout


@dataclass(frozen=True)
class Tensors:
    """The tensors of a prefill or decode kernel, in global memory; ``mask`` and ``sinks`` if its parameters say so."""

    q: Buffer
    k: Buffer
    v: Buffer
    mask: Buffer | None
    sinks: Buffer | None
    out: Buffer


def position(layout: Layout, batch: Any, head: Any, row: Any) -> tuple[Any, Any, Any]:
    """The first three indices of a tensor, each an expression or a slice."""
    return (batch, row, head) if layout == "bshd" else (batch, head, row)


def rows(tensor: Buffer, layout: Layout, batch: Any, head: Any, start: Any, count: int) -> BufferRegion:
    """The region of ``count`` rows of one head, from ``start`` on."""
    return tensor[(*position(layout, batch, head, slice(start, start + count)), slice(None))]


def heads(tensor: Buffer, layout: Layout, batch: Any, start: Any, count: int) -> BufferRegion:
    """The region of the first row of ``count`` heads, from ``start`` on."""
    return tensor[(*position(layout, batch, slice(start, start + count), 0), slice(None))]


def element(tensor: Buffer, layout: Layout, batch: Any, head: Any, row: Any, column: Any) -> PrimExpr:
    """One element."""
    return tensor[(*position(layout, batch, head, row), column)]


def mask_entry(p: AttentionParameters, mask: Buffer, batch: Any, head: Any, query: Any, key: Any) -> PrimExpr | None:
    """The mask's element for a score, if there is a mask."""
    if p.mask is None:
        return None
    row = (batch if p.mask_per_batch else 0, head if p.mask_per_head else 0, query if p.mask_per_query else 0)
    return mask[(*row, key)]


def length(tensor: Buffer, layout: Layout) -> PrimExpr:
    """The length of the tensor's sequences."""
    return tensor.shape[1 if layout == "bshd" else 2]


def diagonal(p: AttentionParameters, queries: PrimExpr, keys: PrimExpr) -> PrimExpr | int:
    """The key at the position of query 0, the last one that it sees under a causal mask."""
    return keys - queries if p.causal == "bottom_right" else 0
