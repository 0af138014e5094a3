"""Expressions of the softmax over scores, which all attention kernels share.

Scores stay products of queries and keys until the exponential, which multiplies by the scale anyway; only an
additive mask, which is not to be scaled, has them scaled before.
"""

import math

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.spec import AttentionParameters

LOG2_E = math.log2(math.e)

# Makes exp2 the one instruction it is on a GPU; without it, three more keep results below 2**-126 from becoming 0.
FAST_EXPONENTIAL = "--use_fast_math"


def masked_score(p: AttentionParameters, score: PrimExpr, visible: PrimExpr, entry: PrimExpr | None) -> PrimExpr:
    """The score, or minus infinity where it is not ``visible`` or the mask's ``entry`` hides it.

    The entry is read where visible alone, which bounds its indices.
    """
    hidden = -T.infinity("float32")
    if p.mask is None:
        return T.if_then_else(visible, score, hidden)
    if p.mask == "additive":
        return T.if_then_else(visible, score * p.scale + T.cast(entry, "float32"), hidden)
    return T.if_then_else(T.if_then_else(visible, entry, T.bool(False)), score, hidden)


def finite(maximum: PrimExpr) -> PrimExpr:
    """The maximum, or 0 for a row that has seen no key yet, lest minus infinity be subtracted from itself."""
    return T.if_then_else(maximum == -T.infinity("float32"), 0.0, maximum)


def exponent(p: AttentionParameters, score: PrimExpr, maximum: PrimExpr, log_base_e: float = LOG2_E) -> PrimExpr:
    """``scale * (score - maximum)`` as an exponent of two, or of the base in which the logarithm of e is given."""
    if p.mask == "additive":
        # The lowest finite number, which masks often hold, would overflow if it were multiplied first.
        return (score - maximum) * log_base_e
    return score * (p.scale * log_base_e) - maximum * (p.scale * log_base_e)


@T.macro
def softmax_tile(p: AttentionParameters, scores: Buffer, maximum: Buffer, rescale: Buffer, total: Buffer):
    """Turn a tile's scores into weights: of each row, update the maximum and total, and note how to rescale its output.

    ``scores`` is ``[rows, keys]``, the others ``[rows]``, all of them float32 in registers.
    """
    rows, keys = scores.shape
    previous = T.alloc_fragment([rows], "float32")
    shift = T.alloc_fragment([rows], "float32")
    tile_sum = T.alloc_fragment([rows], "float32")
    T.copy(maximum, previous)
    T.reduce_max(scores, maximum, dim=1, clear=False)
    for i in T.Parallel(rows):
        shift[i] = finite(maximum[i])
    for i in T.Parallel(rows):
        rescale[i] = T.exp2(exponent(p, previous[i], shift[i]))
    for i, j in T.Parallel(rows, keys):
        scores[i, j] = T.exp2(exponent(p, scores[i, j], shift[i]))
    T.reduce_sum(scores, tile_sum, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * rescale[i] + tile_sum[i]
