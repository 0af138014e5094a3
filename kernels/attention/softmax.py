"""Expressions of the softmax over scores, which all attention kernels share.

Scores stay products of queries and keys until the exponential, which multiplies by the scale anyway; only an
additive mask, which is not to be scaled, has them scaled before. Capped scores stay hyperbolic tangents as long, and
what they are multiplied by is the cap.
"""

import math
from collections.abc import Callable
from functools import reduce

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.parameters import AttentionParameters

LOG2_E = math.log2(math.e)

# Makes exp2 the one instruction it is on a GPU; without it, three more keep results below 2**-126 from becoming 0.
FAST_EXPONENTIAL = "--use_fast_math"


# (tanh(x) / x - 1) / x**2 for |x| below _TANH_NEAR as a polynomial of x**2, from the highest power down.
_TANH_TERMS = (-5.704988e-3, 2.063909e-2, -5.373972e-2, 1.333144e-1, -3.333328e-1)
_TANH_NEAR = 0.625


def unit(p: AttentionParameters) -> float:
    """What a score, as kernels hold it before the mask, is to be multiplied by."""
    return p.scale if p.softcap is None else p.softcap


def tanh_score(
    p: AttentionParameters, score: PrimExpr, power: Callable[[PrimExpr], PrimExpr], log_base_e: float = LOG2_E
) -> PrimExpr:
    """The hyperbolic tangent of a scaled score over the cap, by ``power`` of the base in which log of e is given.

    As ``1 - 2 / (1 + e**2x)``, whose error is absolute, and below 1e-6: so much of the cap is an error of the score,
    which is little beside the rounding of 16-bit queries and keys. In float32 it is not, so that numbers near 0 are
    computed by a polynomial there (Moshier's Cephes, ``tanhf``). Powers that overflow or vanish give the right limits.
    """
    assert p.softcap is not None
    far = 1.0 - 2.0 / (1.0 + power(score * (2 * p.scale / p.softcap * log_base_e)))
    if p.dtype != "float32":
        return far
    x = score * (p.scale / p.softcap)
    square = x * x
    terms = reduce(lambda total, factor: total * square + T.float32(factor), _TANH_TERMS, T.float32(0.0))
    return T.if_then_else(square < _TANH_NEAR**2, x + x * square * terms, far)


@T.macro
def cap_tile(p: AttentionParameters, scores: Buffer) -> None:
    """Bound a tile's scores, if they are to be capped."""
    if p.softcap is not None:
        for i, j in T.Parallel(*scores.shape):
            scores[i, j] = tanh_score(p, scores[i, j], T.exp2)


def sink_weight(
    p: AttentionParameters,
    sink: PrimExpr,
    maximum: PrimExpr,
    power: Callable[[PrimExpr], PrimExpr] = T.exp2,
    log_base_e: float = LOG2_E,
) -> PrimExpr:
    """The weight of a key that has no value, ``sink`` being its score, where ``maximum`` is the largest of the others.

    Such weights are added when all others are, so that sinks need not count for the maximum: where one is so much
    larger that its weight overflows, all that is divided by it is zero. An infinite one makes NaN of a softmax.
    """
    exponent = sink * log_base_e - finite(maximum) * ((1.0 if p.mask == "additive" else unit(p)) * log_base_e)
    return T.if_then_else(sink == T.infinity("float32"), T.float32(math.nan), power(exponent))


@T.macro
def count_sink(p: AttentionParameters, sink: PrimExpr, maximum: Buffer, total: Buffer) -> None:
    """Add the weight of a head's sink to the ``total`` of rows whose largest score is ``maximum``."""
    for i in T.Parallel(total.shape[0]):
        total[i] += sink_weight(p, T.cast(sink, "float32"), maximum[i])


def masked_score(p: AttentionParameters, score: PrimExpr, visible: PrimExpr, entry: PrimExpr | None) -> PrimExpr:
    """The score, or minus infinity where it is not ``visible`` or the mask's ``entry`` hides it.

    The entry is read where visible alone, which bounds its indices.
    """
    hidden = -T.infinity("float32")
    if p.mask is None:
        return T.if_then_else(visible, score, hidden)
    if p.mask == "additive":
        return T.if_then_else(visible, score * unit(p) + T.cast(entry, "float32"), hidden)
    return T.if_then_else(T.if_then_else(visible, entry, T.bool(False)), score, hidden)


def finite(maximum: PrimExpr) -> PrimExpr:
    """The maximum, or 0 for a row that has seen no key yet, lest minus infinity be subtracted from itself."""
    return T.if_then_else(maximum == -T.infinity("float32"), 0.0, maximum)


def exponent(p: AttentionParameters, score: PrimExpr, maximum: PrimExpr, log_base_e: float = LOG2_E) -> PrimExpr:
    """The difference of two scores as an exponent of two, or of the base in which the logarithm of e is given.

    Scores are yet to be multiplied by :func:`unit`, unless a mask was added.
    """
    if p.mask == "additive":
        # The lowest finite number, which masks often hold, would overflow if it were multiplied first.
        return (score - maximum) * log_base_e
    return score * (unit(p) * log_base_e) - maximum * (unit(p) * log_base_e)


def mean_value(weighted: PrimExpr, total: PrimExpr) -> PrimExpr:
    """A row's weighted sum of values over the ``total`` of its weights, which is 0 for a row that sees no key alone.

    That row is 0. One with a score that is NaN has weights and a total that are, though maxima pass over NaN.
    """
    return T.if_then_else(total == 0, 0.0, weighted / total)


@T.macro
def softmax_tile(p: AttentionParameters, scores: Buffer, maximum: Buffer, rescale: Buffer, total: Buffer) -> None:
    """Turn a tile's scores into weights: of each row, update the maximum and total, and note how to rescale its output.

    ``scores`` is ``[rows, keys]``, the others ``[rows]``, all of them float32 in registers.
    """
    weigh_tile(p, scores, maximum, rescale)
    count_weights(scores, rescale, total)


@T.macro
def weigh_tile(p: AttentionParameters, scores: Buffer, maximum: Buffer, rescale: Buffer, slack: float = 0.0) -> None:
    """As ``softmax_tile``, which updates the total, too.

    A maximum stays as it is until scores exceed it by ``slack`` (as exponents of two), and weights become as large as
    that: then there is seldom anything to rescale (Dao et al., FlashAttention-4).
    """
    rows, keys = scores.shape
    previous = T.alloc_fragment([rows], "float32")
    shift = T.alloc_fragment([rows], "float32")
    T.copy(maximum, previous)
    T.reduce_max(scores, maximum, dim=1, clear=False)
    if slack > 0:
        for i in T.Parallel(rows):
            stays = exponent(p, maximum[i], previous[i]) <= slack  # false for the first scores, which exceed nothing
            maximum[i] = T.if_then_else(stays, previous[i], maximum[i])
    for i in T.Parallel(rows):
        shift[i] = finite(maximum[i])
    for i in T.Parallel(rows):
        rescale[i] = T.exp2(exponent(p, previous[i], shift[i]))
    if slack > 0:
        for i in T.Parallel(rows):
            # Two products of the same numbers, one of which is rounded, differ.
            rescale[i] = T.if_then_else(maximum[i] == previous[i], 1.0, rescale[i])
    for i, j in T.Parallel(rows, keys):
        scores[i, j] = T.exp2(exponent(p, scores[i, j], shift[i]))


@T.macro
def rescale_rows(sums: tuple[Buffer, ...], rescale: Buffer) -> None:
    """Multiply the rows of all ``sums`` with ``rescale``, in threads that have rows to which it makes a difference."""
    changes = T.alloc_var("bool", False)
    for i in T.Parallel(rescale.shape[0]):
        changes = changes | (rescale[i] != 1.0)
    if changes:
        for part in sums:
            for i, j in T.Parallel(*part.shape):
                part[i, j] *= rescale[i]


@T.macro
def count_weights(weights: Buffer, rescale: Buffer, total: Buffer) -> None:
    """Add a tile's weights to the total of those before, which is rescaled."""
    rows = total.shape[0]
    tile_sum = T.alloc_fragment([rows], "float32")
    T.reduce_sum(weights, tile_sum, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * rescale[i] + tile_sum[i]
