"""Statements over other buffers than those they were written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

Convert = Callable[[tirx.PrimExpr, str], tirx.PrimExpr]
"""From a value to one of another dtype."""

Indices = Callable[[tirx.Buffer, Sequence[tirx.PrimExpr]], Sequence[tirx.PrimExpr]]


def _as_they_are(buffer: tirx.Buffer, indices: Sequence[tirx.PrimExpr]) -> Sequence[tirx.PrimExpr]:
    return indices


def _cast(value: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    return value.astype(dtype)


def over_buffers(
    body: tirx.Stmt,
    buffers: Mapping[tirx.Buffer, tirx.Buffer],
    indices: Indices = _as_they_are,
    convert: Convert = _cast,
) -> tirx.Stmt:
    """``body`` over the values of ``buffers`` in place of the keys.

    ``convert`` makes values of one's dtype from those of the other's. ``indices`` turns a place in a buffer that is
    replaced into one in its replacement.
    """

    def region(part: tirx.BufferRegion) -> tirx.BufferRegion:
        if part.buffer not in buffers:
            return part
        starts = indices(part.buffer, [dimension.min for dimension in part.region])
        lengths = [dimension.extent for dimension in part.region]
        ranges = [tvm.ir.Range.from_min_extent(*pair) for pair in zip(starts, lengths, strict=True)]
        return tirx.BufferRegion(buffers[part.buffer], ranges)

    def rewrite(node: Any) -> Any:
        if isinstance(node, tirx.BufferLoad) and node.buffer in buffers:
            load = tirx.BufferLoad(buffers[node.buffer], indices(node.buffer, node.indices))
            return load if load.dtype == node.dtype else convert(load, node.dtype)
        if isinstance(node, tirx.BufferStore) and node.buffer in buffers:
            old, new = node.buffer, buffers[node.buffer]
            # The dtype of a vector names its lanes, too.
            dtype = node.value.dtype.replace(old.dtype, new.dtype)
            value = node.value if dtype == node.value.dtype else convert(node.value, dtype)
            return tirx.BufferStore(new, value, indices(old, node.indices))
        if isinstance(node, tirx.SBlock):
            return tirx.SBlock(
                node.iter_vars,
                [region(part) for part in node.reads],
                [region(part) for part in node.writes],
                node.name_hint,
                node.body,
                node.init,
                [buffers.get(buffer, buffer) for buffer in node.alloc_buffers],
                [tirx.MatchBufferRegion(match.buffer, region(match.source)) for match in node.match_buffers],
                node.annotations,
            )
        return None

    return ir_transform(body, None, rewrite, ["tirx.BufferLoad", "tirx.BufferStore", "tirx.SBlock"])
