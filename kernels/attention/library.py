"""PyTorch's attention: cuDNN or FlashAttention on a GPU."""

from __future__ import annotations

import torch

from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.cases import Candidate


def candidate(parameters: AttentionParameters | LatentParameters) -> Candidate:
    """For plain attention, and for MLA's."""
    return latent_sdpa if isinstance(parameters, LatentParameters) else sdpa


def sdpa(parameters: AttentionParameters, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
    """Scaled dot-product attention."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    causal = parameters.causal is not None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=parameters.scale, enable_gqa=True
    )


def latent_sdpa(parameters: LatentParameters, q: torch.Tensor, cache: torch.Tensor) -> object:
    """The same with the heads as the queries of one head, so that nothing is repeated."""
    latents = cache[..., : parameters.latent_size]
    q, k, v = (tensor[:, None] for tensor in (q, cache, latents))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=parameters.scale)
