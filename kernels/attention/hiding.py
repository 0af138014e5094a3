"""What a tile of queries may not see of a tile of keys."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.softmax import masked_score
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.attention.tensors import diagonal, mask_entry


@T.macro
def hide_tile(
    p: AttentionParameters,
    mask: Buffer | None,
    scores: Buffer,
    batch: PrimExpr,
    head: PrimExpr,
    first_query: PrimExpr,
    first_key: PrimExpr,
    queries: PrimExpr,
    keys: PrimExpr,
) -> None:
    """Make minus infinity of those ``scores`` (``[queries, keys]`` of the tile) that the mask or the end hides.

    Most tiles see all their keys; only the others pay for it.
    """
    block_queries, block_keys = scores.shape
    causal, masked = p.causal is not None, p.mask is not None
    offset = diagonal(p, queries, keys)
    partial = first_key + block_keys > keys
    if causal:
        partial = partial | (first_key + block_keys - 1 > first_query + offset)
    # Variables, because every use of an expression over sizes is another one to simplify when the kernel is built.
    here = T.alloc_var("int32")
    ahead = T.alloc_var("int32")
    here = keys - first_key
    ahead = first_query + offset - first_key
    if masked or partial:
        for i, j in T.Parallel(block_queries, block_keys):
            visible = j < here
            if causal:
                visible = visible & (j <= i + ahead)
            if masked:
                visible = visible & (first_query + i < queries)
            entry = mask_entry(p, mask, batch, head, first_query + i, first_key + j)
            scores[i, j] = masked_score(p, scores[i, j], visible, entry)
