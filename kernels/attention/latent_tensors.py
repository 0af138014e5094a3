"""How latent attention addresses queries and cached keys, whose two parts are one tensor or two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.tirx import Buffer, BufferRegion, PrimExpr

from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.attention.softmax import masked_score
from tkc.kernels.attention.tensors import mask_entry


def latent_columns(tensor: Buffer, batch: Any, first_row: Any, rows: int, first: Any, count: int) -> BufferRegion:
    """``count`` columns of the latents of some heads or keys, from the column ``first`` on."""
    return tensor[batch, first_row : first_row + rows, first : first + count]


@dataclass(frozen=True)
class RopeColumns:
    """Where the rotary part of heads or keys lies: behind the ``latents`` if ``joined``, or in a tensor ``apart``."""

    p: LatentParameters
    joined: bool
    latents: Buffer
    apart: Buffer | None


def rope_columns(where: RopeColumns, batch: Any, first_row: Any, rows: int) -> BufferRegion:
    """The rotary part of some heads or keys."""
    source, first = (where.latents, where.p.latent_size) if where.joined else (where.apart, 0)
    return source[batch, first_row : first_row + rows, first : first + where.p.rope_size]


def masked_scores(
    p: LatentParameters, mask: Buffer | None, batch: PrimExpr, first_head: PrimExpr, keys: PrimExpr
) -> Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]:
    """``masked(score, head, key)``: the score, or minus infinity, for a tile of the heads from ``first_head`` on."""
    attention = p.attention

    def masked(score: PrimExpr, head: PrimExpr, key: PrimExpr) -> PrimExpr:
        visible = key < keys
        if p.mask_per_head:
            visible = visible & (first_head + head < p.num_heads)
        return masked_score(attention, score, visible, mask_entry(attention, mask, batch, first_head + head, 0, key))

    return masked
