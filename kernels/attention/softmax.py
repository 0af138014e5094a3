"""Expressions of the softmax over scores, which all attention kernels share.

Scores stay products of queries and keys until the exponential, which multiplies by the scale anyway; only an
additive mask, which is not to be scaled, has them scaled before.
"""

from __future__ import annotations

import math
from typing import Any

import tilelang.language as T

from tkc.kernels.attention.spec import AttentionParameters

_LOG2_E = math.log2(math.e)


def masked_score(
    p: AttentionParameters, score: Any, visible: Any, mask: Any, batch: Any, head: Any, query: Any, key: Any
) -> Any:
    """The score, or minus infinity where it is not ``visible`` or masked; the mask is read where visible alone."""
    if p.mask is None:
        return T.if_then_else(visible, score, -T.infinity("float32"))
    entry = mask[batch if p.mask_per_batch else 0, head if p.mask_per_head else 0, query, key]
    if p.mask == "additive":
        return T.if_then_else(visible, score * p.scale + T.cast(entry, "float32"), -T.infinity("float32"))
    return T.if_then_else(T.if_then_else(visible, entry, T.bool(False)), score, -T.infinity("float32"))


def finite(maximum: Any) -> Any:
    """The maximum, or 0 for a row that has seen no key yet, lest minus infinity be subtracted from itself."""
    return T.if_then_else(maximum == -T.infinity("float32"), 0.0, maximum)


def exponent(p: AttentionParameters, score: Any, maximum: Any) -> Any:
    """``e**(scale * (score - maximum))`` as an exponent of two."""
    if p.mask == "additive":
        # The lowest finite number, which masks often hold, would overflow if it were multiplied first.
        return (score - maximum) * _LOG2_E
    return score * (p.scale * _LOG2_E) - maximum * (p.scale * _LOG2_E)
