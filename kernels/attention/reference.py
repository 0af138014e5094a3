"""Attention in plain PyTorch, the yardstick that the kernels are tested against."""

from __future__ import annotations

from dataclasses import replace

import torch

from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters, Layout


def attention(
    parameters: AttentionParameters,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: torch.Tensor,
) -> torch.Tensor:
    """``softmax(scale * q @ k^T + mask) @ v`` in float32, cast to the input's dtype; shapes as the specs state them.

    ``rest`` is the mask, if there is one, then the sinks, if there are any.
    """
    sinks = rest[-1] if parameters.sinks else None
    mask = rest[0] if parameters.mask is not None else None
    query = _heads_first(q, parameters.q_layout)
    key = _heads_first(k, parameters.k_layout)
    value = _heads_first(v, parameters.v_layout)

    scores = _of_groups(parameters, query) @ key.transpose(-1, -2) * parameters.scale
    scores = _of_heads(parameters, scores)
    if parameters.softcap is not None:
        scores = parameters.softcap * torch.tanh(scores / parameters.softcap)
    if mask is not None:
        scores = scores + mask.float() if parameters.mask == "additive" else scores.masked_fill(~mask, -torch.inf)
    scores = scores.masked_fill(~_seen_positions(parameters, *scores.shape[-2:]).to(scores.device), -torch.inf)

    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores, dim=-1).masked_fill(sees_nothing, 0.0)[..., : key.shape[2]]
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
        *(() if mask is None else (mask.transpose(1, 2),)),
    )
    return out[:, :, 0]


def _heads_first(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Swap sequence and heads where ``layout`` is bshd; the same swap leads there and back."""
    return (tensor if layout == "bhsd" else tensor.transpose(1, 2)).float()


def _of_groups(parameters: AttentionParameters, rows: torch.Tensor) -> torch.Tensor:
    """The rows of all heads that share keys as those of one head, so that no key is repeated."""
    groups: torch.Tensor = rows.unflatten(1, (parameters.num_kv_heads, rows.shape[1] // parameters.num_kv_heads))
    return groups.flatten(2, 3)


def _of_heads(parameters: AttentionParameters, rows: torch.Tensor) -> torch.Tensor:
    group = parameters.num_heads // parameters.num_kv_heads
    heads: torch.Tensor = rows.unflatten(2, (group, rows.shape[2] // group))
    return heads.flatten(1, 2)


def _seen_positions(parameters: AttentionParameters, queries: int, keys: int) -> torch.Tensor:
    """True where the causal mask and the window show the query at row i the key at column j."""
    first_query = keys - queries if parameters.causal == "bottom_right" else 0
    distance = torch.arange(first_query, first_query + queries)[:, None] - torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if parameters.causal is not None:
        seen &= distance >= 0
    if parameters.window is not None:
        seen &= distance.abs() <= parameters.window
    return seen
