"""Mixture-of-experts gating in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tkc.kernels.moe_gate.parameters import MoeGateParameters


def moe_gate(
    parameters: MoeGateParameters, logits: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and indices ``[tokens, top_k]`` for ``logits [tokens, num_experts]`` and ``bias [num_experts]``.

    The grouped choice is DeepSeek-V3's (arXiv:2412.19437, section 2.1.2, and its ``noaux_tc`` gate), or DeepSeek-V2's,
    which ranks groups by their best expert (arXiv:2405.04434, section 2.2.2).
    """
    p = parameters
    logits = logits.float()
    scores = score(p, logits)
    ranks = logits if p.ranks_logits else scores
    if bias is not None:
        ranks = ranks + bias
    if p.limits_groups:
        ranks = _limit_groups(p, ranks)
    # A stable sort keeps the smaller index first among equals, which torch.topk does not promise.
    indices = torch.sort(ranks, dim=-1, descending=True, stable=True).indices[:, : p.top_k]
    weights = scores.gather(-1, indices)
    if p.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + p.epsilon)
    weights = weights * p.scale
    return weights.to(getattr(torch, p.weights_dtype)), indices.to(getattr(torch, p.indices_dtype))


def score(parameters: MoeGateParameters, logits: torch.Tensor) -> torch.Tensor:
    """The scores of float32 ``logits [tokens, num_experts]``."""
    if parameters.scoring == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if parameters.scoring == "sigmoid" else F.softplus(logits).sqrt()


def _limit_groups(parameters: MoeGateParameters, ranks: torch.Tensor) -> torch.Tensor:
    groups: torch.Tensor = ranks.unflatten(-1, (parameters.num_groups, -1))
    group_ranks = groups.topk(parameters.group_ranks, dim=-1).values.sum(-1)
    best = torch.sort(group_ranks, dim=-1, descending=True, stable=True).indices[:, : parameters.top_groups]
    eligible = torch.zeros_like(group_ranks, dtype=torch.bool).scatter_(-1, best, True)
    excluded = 0.0 if parameters.excluded_rank == "zero" else -torch.inf
    return groups.masked_fill(~eligible.unsqueeze(-1), excluded).flatten(-2)
