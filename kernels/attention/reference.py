"""Attention in plain PyTorch, the yardstick that the kernels are tested against."""

from __future__ import annotations

from dataclasses import replace

import torch

from tkc.kernels.attention.latent_spec import LatentParameters
from tkc.kernels.attention.spec import AttentionParameters, Layout


def attention(
    parameters: AttentionParameters,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """``softmax(scale * q @ k^T + mask) @ v`` in float32, cast to the input's dtype; shapes as the specs state them."""
    query = _heads_first(q, parameters.q_layout)
    key = _heads_first(k, parameters.k_layout)
    value = _heads_first(v, parameters.v_layout)

    scores = _of_groups(parameters, query) @ key.transpose(-1, -2) * parameters.scale
    scores = _of_heads(parameters, scores)
    if mask is not None:
        scores = scores + mask.float() if parameters.mask == "additive" else scores.masked_fill(~mask, -torch.inf)
    if parameters.causal is not None:
        scores = scores.masked_fill(~_causal_mask(parameters, *scores.shape[-2:]).to(scores.device), -torch.inf)

    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores, dim=-1).masked_fill(sees_nothing, 0.0)
    out = _of_heads(parameters, _of_groups(parameters, weights) @ value)
    return _heads_first(out, parameters.out_layout).to(q.dtype).contiguous()


def latent_attention(parameters: LatentParameters, *inputs: torch.Tensor) -> torch.Tensor:
    """Attention over latents, with the heads as if they were the queries of one head, so that no key is repeated."""
    p = parameters
    tensors = iter(inputs)
    q, cache = (
        next(tensors) if joined else torch.cat([next(tensors), next(tensors)], dim=-1)
        for joined in (p.joined_queries, p.joined_cache)
    )
    mask = next(tensors, None)
    out = attention(
        replace(p.attention, num_heads=1),
        q[:, :, None],
        cache[:, :, None],
        cache[:, :, None, : p.latent_size],
        None if mask is None else mask.transpose(1, 2),
    )
    return out[:, :, 0]


def _heads_first(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Swap sequence and heads where ``layout`` is bshd; the same swap leads there and back."""
    return (tensor if layout == "bhsd" else tensor.transpose(1, 2)).float()


def _of_groups(parameters: AttentionParameters, rows: torch.Tensor) -> torch.Tensor:
    """The rows of all heads that share keys as those of one head, so that no key is repeated."""
    return rows.unflatten(1, (parameters.num_kv_heads, rows.shape[1] // parameters.num_kv_heads)).flatten(2, 3)


def _of_heads(parameters: AttentionParameters, rows: torch.Tensor) -> torch.Tensor:
    group = parameters.num_heads // parameters.num_kv_heads
    return rows.unflatten(2, (group, rows.shape[2] // group)).flatten(1, 2)


def _causal_mask(parameters: AttentionParameters, queries: int, keys: int) -> torch.Tensor:
    """True where the key at column j is no later than the query at row i."""
    last_key = 0 if parameters.causal == "top_left" else keys - queries
    return torch.ones(queries, keys, dtype=torch.bool).tril(last_key)
