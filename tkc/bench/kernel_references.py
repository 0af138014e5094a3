"""PyTorch's best for each kernel, beside which it is measured; each takes the kernel's parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tkc.kernels.attention.latent_spec import LatentParameters
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.batched_matmul.spec import BatchedMatmulParameters
from tkc.kernels.gated_matmul.spec import GatedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmulParameters
from tkc.kernels.matmul.spec import MatmulParameters
from tkc.kernels.moe_permute.spec import MoePermuteParameters
from tkc.kernels.normalization.spec import NormalizationParameters
from tkc.kernels.scaled_matmul.spec import ScaledMatmulParameters

Reference = Callable[..., object]


def sort(parameters: MoePermuteParameters, experts: torch.Tensor) -> object:
    """A stable sort of the copies by their experts."""
    return torch.sort(experts, stable=True)


def normalized(parameters: NormalizationParameters, x: torch.Tensor, weight: torch.Tensor) -> object:
    """RMS or layer normalization."""
    if parameters.kind == "rms":
        return torch.nn.functional.rms_norm(x, (parameters.channels,), weight, parameters.epsilon)
    return torch.nn.functional.layer_norm(x, (parameters.channels,), weight, None, parameters.epsilon)


def matmul(parameters: MatmulParameters, a: torch.Tensor, b: torch.Tensor, *added: torch.Tensor) -> object:
    """cuBLAS's product on a GPU, and nothing of what the kernel does with it."""
    return a @ b.T


def block_scaled_reference() -> Reference | None:
    """PyTorch's product with these scales (``k`` a multiple of 512), which it has for compute capability 9.0 alone."""
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return _block_scaled if on_hopper else None


def _block_scaled(
    parameters: ScaledMatmulParameters,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
) -> object:
    # PyTorch wants the rows' scales column by column. Taking ours for that costs no time, and the result is not read.
    by_column = a_scale.view(a_scale.shape[::-1]).T
    recipes = torch.nn.functional.ScalingType
    return torch.nn.functional.scaled_mm(
        a, b.T, by_column, recipes.BlockWise1x128, b_scale.T, recipes.BlockWise128x128, output_dtype=torch.bfloat16
    )


def gated(parameters: GatedMatmulParameters, a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> object:
    """Two products, and what joins them."""
    return torch.nn.functional.silu(a @ gate.T) * (a @ up.T)


def grouped(parameters: GroupedMatmulParameters, a: torch.Tensor, *operands: torch.Tensor) -> object:
    """PyTorch's grouped product, after a gather of the rows and before the activation where the kernel has them."""
    *rows, b, offsets = operands
    for numbers in rows:
        a = a[numbers]
    products = torch._grouped_mm(a, b.transpose(1, 2), offs=offsets)
    if parameters.gated is None:
        return products
    gate, up = products.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def batched(parameters: BatchedMatmulParameters, a: torch.Tensor, b: torch.Tensor) -> object:
    """cuBLAS's batched product on a GPU."""
    return torch.bmm(a, b.mT if parameters.layout == "nk" else b)


def sdpa(parameters: AttentionParameters, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
    """Scaled dot-product attention, by cuDNN or FlashAttention on a GPU."""
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
