"""Masking of one tile of scores: what a tile of queries may not see of a tile of keys."""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, truncdiv

from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.softmax import masked_score, unit
from tkc.kernels.attention.spec import keys_ahead
from tkc.kernels.attention.tensors import diagonal, mask_entry
from tkc.kernels.devices import WARP


@dataclass(frozen=True)
class QueryTile:
    """A tile of queries, from ``first_query`` on, of a sequence of so many ``queries`` and ``keys``, with its mask."""

    mask: Buffer | None
    batch: PrimExpr
    head: PrimExpr
    first_query: PrimExpr
    queries: PrimExpr
    keys: PrimExpr


@T.macro
def hide_tile(p: AttentionParameters, tile: QueryTile, scores: Buffer, first_key: PrimExpr) -> None:
    """Make minus infinity of those ``scores`` (``[queries, keys]`` of the tile) that mask, window or the end hide.

    Most tiles see all their keys; only the others pay for it.
    """
    block_queries, block_keys = scores.shape
    batch, head, first_query, queries, keys = tile.batch, tile.head, tile.first_query, tile.queries, tile.keys
    windowed = p.window is not None
    masked = p.mask is not None
    if p.mask is not None and not p.mask_per_query:
        masked = _changes_keys(p, tile, first_key, block_keys)
    bounded = p.causal is not None or windowed
    offset = diagonal(p, queries, keys)
    partial = first_key + block_keys > keys
    if bounded:
        partial = partial | (first_key + block_keys - 1 > first_query + offset + keys_ahead(p))
    if windowed:
        partial = partial | (first_key < first_query + block_queries - 1 + offset - p.window)
    # Variables, because every use of an expression over sizes is another one to simplify when the kernel is built.
    here = T.alloc_var("int32")
    ahead = T.alloc_var("int32")
    here = keys - first_key
    ahead = first_query + offset + keys_ahead(p) - first_key
    if masked or partial:
        for i, j in T.Parallel(block_queries, block_keys):
            visible = j < here
            if bounded:
                visible = visible & (j <= i + ahead)
            if windowed:
                visible = visible & (j + (p.window + keys_ahead(p)) >= i + ahead)  # type: ignore[operator]  # it has a window
            if p.mask is not None and p.mask_per_query:
                visible = visible & (first_query + i < queries)
            entry = mask_entry(p, tile.mask, batch, head, first_query + i, first_key + j)
            scores[i, j] = masked_score(p, scores[i, j], visible, entry)
    elif p.mask == "additive" and not p.mask_per_query:
        for i, j in T.Parallel(block_queries, block_keys):
            scores[i, j] *= unit(p)


@T.macro
def _changes_keys(p: AttentionParameters, tile: QueryTile, first_key: PrimExpr, block_keys: int) -> PrimExpr:
    """Whether a mask that is one for all queries hides or changes any key of a block; each warp looks at all of them.

    Of padded sequences most blocks are wholly visible.
    """
    changes = T.alloc_var("bool", False)
    for part in T.unroll(-(-block_keys // WARP)):
        key = first_key + part * WARP + T.get_thread_binding() % WARP
        entry = mask_entry(p, tile.mask, tile.batch, tile.head, 0, key)
        neutral = entry if p.mask == "bool" else entry == 0
        changes = changes | T.if_then_else(key < tile.keys, T.Not(neutral), False)
    return T.any_sync(changes) != 0


def first_key_block(
    p: AttentionParameters,
    first_query: PrimExpr,
    queries: PrimExpr,
    keys: PrimExpr,
    block_keys: int,
    end: PrimExpr,
) -> PrimExpr | int:
    """The first block of keys, of those before ``end``, that a tile of queries sees; the last of them if it sees none.

    What is outside the window of all queries is never loaded.
    """
    if p.window is None:
        return 0
    # Rounds towards zero, which takes fewer instructions, and makes no difference below zero.
    first_seen = truncdiv(first_query + diagonal(p, queries, keys) - p.window, block_keys)
    return T.max(0, T.min(first_seen, end - 1))
