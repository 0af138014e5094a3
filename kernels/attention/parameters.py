"""The parameters of attention, and of multi-head latent attention (MLA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["bshd", "bhsd"]


@dataclass(frozen=True)
class AttentionParameters:
    """``softmax(scale * q @ k^T + mask) @ v``, ``num_heads / num_kv_heads`` query heads to a key/value head.

    ``causal``: a query sees keys up to its own position, positions counted from the first of both
    (``top_left``) or from the last (``bottom_right``). ``mask``: ``bool`` keeps where true, ``additive`` (in ``dtype``)
    is added; ``[batch, num_heads, queries, keys]``, any of the first three 1 if broadcast: a padding mask is not
    ``mask_per_query``. A row with nothing to see gives zeros. Layouts name the order of batch (b), sequence (s), heads
    (h) and head size (d) of each tensor.

    ``window``: keys at most so many positions away from the query's own are seen, positions counted from the first of
    both unless ``causal`` says otherwise. ``softcap``: scores become ``softcap * tanh(scale * q @ k^T / softcap)``
    before the mask (Gemma 2). ``sinks``: one score for each head, of a key whose value is zero, which all queries see
    (GPT-OSS); a last input ``[num_heads]`` of ``dtype``.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int
    dtype: Literal["float32", "float16", "bfloat16"]
    scale: float
    causal: Literal["top_left", "bottom_right"] | None = None
    mask: Literal["bool", "additive"] | None = None
    mask_per_batch: bool = False
    mask_per_head: bool = False
    mask_per_query: bool = True
    q_layout: Layout = "bshd"
    k_layout: Layout = "bshd"
    v_layout: Layout = "bshd"
    out_layout: Layout = "bshd"
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def hides_keys(self) -> bool:
        """Whether keys may be hidden from queries."""
        return self.causal is not None or self.mask is not None or self.window is not None


@dataclass(frozen=True)
class LatentParameters:
    """``softmax(scale * (q_latent @ latent^T + q_rope @ rope^T) + mask) @ latent``, one cache for all heads.

    What is cached of a key is its latent, which is also its value, and the part that carries its position (rotary
    embedding, "rope"). ``joined_queries`` and ``joined_cache``: both parts are columns of one tensor, the latent
    first. ``mask`` as in :class:`AttentionParameters`. (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.)
    """

    num_heads: int
    latent_size: int
    rope_size: int
    dtype: Literal["float32", "float16", "bfloat16"]
    scale: float
    mask: Literal["bool", "additive"] | None = None
    mask_per_batch: bool = False
    mask_per_head: bool = False
    joined_queries: bool = False
    joined_cache: bool = False

    @property
    def attention(self) -> AttentionParameters:
        """The same as attention in general: one key/value head, whose values are the first columns of its keys."""
        return AttentionParameters(
            num_heads=self.num_heads,
            num_kv_heads=1,
            head_size=self.latent_size + self.rope_size,
            value_head_size=self.latent_size,
            dtype=self.dtype,
            scale=self.scale,
            mask=self.mask,
            mask_per_batch=self.mask_per_batch,
            mask_per_head=self.mask_per_head,
        )
