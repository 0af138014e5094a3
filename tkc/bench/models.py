"""The models that are benchmarked: real architectures from transformers, with random weights, in production shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Benchmarked:
    """A model with the inputs to export it with; ``dynamic_shapes`` leaves batch and sequence symbolic."""

    name: str
    model: nn.Module
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any]
    vocabulary: int


def llama_3_8b_layers(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """Decoder layers of Llama-3-8B's shape: hidden 4096, 32 query and 8 key/value heads, 14336 wide."""
    from transformers import LlamaConfig, LlamaModel

    config: Any = LlamaConfig(  # type: ignore[call-arg]
        vocab_size=1024,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500000.0,
    )
    return _causal("llama-3-8b", LlamaModel, config, device, dtype)


def qwen3_30b_a3b_layers(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """Decoder layers of Qwen3-30B-A3B's shape: hidden 2048, 32 and 4 heads of 128, 128 experts of 768, top 8."""
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config: Any = Qwen3MoeConfig(  # type: ignore[call-arg]
        vocab_size=1024,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=8192,
    )
    return _causal("qwen3-30b-a3b", Qwen3MoeModel, config, device, dtype)


Factory = Callable[[int, torch.device, torch.dtype], Benchmarked]
MODELS: dict[str, Factory] = {"llama-3-8b": llama_3_8b_layers, "qwen3-30b-a3b": qwen3_30b_a3b_layers}


def _causal(
    name: str,
    model_type: type[nn.Module],
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
) -> Benchmarked:
    torch.manual_seed(0)
    with device:
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = model_type(config).eval()
        finally:
            torch.set_default_dtype(default)
        ids = torch.randint(0, config.vocab_size, (2, 64))  # export fixes sizes of 1
    sizes = {0: torch.export.Dim("batch", max=256), 1: torch.export.Dim("sequence", min=2, max=8192)}
    kwargs = {"input_ids": ids, "use_cache": False}
    title = f"{name}, {config.num_hidden_layers} layers"
    return Benchmarked(title, model, kwargs, {"input_ids": sizes, "use_cache": None}, config.vocab_size)
