"""The models that are benchmarked: real architectures from transformers, with random weights, in production shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Benchmarked:
    """A model with the inputs to export it with, and how to make more.

    ``dynamic_shapes`` leaves batch and sequence symbolic; ``inputs(batch, tokens)`` are random ones of that size
    (images have one size, whatever the tokens). ``caches`` are the buffers that a call changes by a row at the last
    token's position of their next to last axis.
    """

    name: str
    model: nn.Module
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any] | None
    inputs: Callable[[int, int], dict[str, Any]]
    caches: tuple[str, ...] = ()


def llama_3_8b_layers(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """Decoder layers of Llama-3-8B's shape: hidden 4096, 32 query and 8 key/value heads, 14336 wide."""
    from transformers import LlamaModel

    return text_model("llama-3-8b", LlamaModel, llama_3_8b_config(layers), device, dtype, {"use_cache": False})


def llama_3_8b_config(layers: int, most: int = 8192) -> Any:
    """Llama-3-8B's configuration with fewer layers, a small vocabulary, and ``most`` positions."""
    from transformers import LlamaConfig

    return LlamaConfig(  # type: ignore[call-arg]  # made a dataclass at run time
        vocab_size=1024,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=most,
        rope_theta=500000.0,
    )


def qwen3_30b_a3b_layers(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """Decoder layers of Qwen3-30B-A3B's shape: hidden 2048, 32 and 4 heads of 128, 128 experts of 768, top 8."""
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config: Any = Qwen3MoeConfig(  # type: ignore[call-arg]  # made a dataclass at run time
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
    return text_model("qwen3-30b-a3b", Qwen3MoeModel, config, device, dtype, {"use_cache": False})


def bert_large(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """An encoder of BERT-large's shape: hidden 1024, 16 heads, 4096 wide."""
    from transformers import BertConfig, BertModel

    config: Any = BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=layers)
    return text_model("bert-large", BertModel, config, device, dtype, {})


def vit_large_16(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """An encoder of ViT-L/16's shape: images of 224×224 in patches of 16, hidden 1024, 16 heads, 4096 wide."""
    from transformers import ViTConfig

    config: Any = ViTConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=layers)
    return image_model("vit-l-16", config, device, dtype)


Factory = Callable[[int, torch.device, torch.dtype], Benchmarked]
MODELS: dict[str, Factory] = {
    "llama-3-8b": llama_3_8b_layers,
    "qwen3-30b-a3b": qwen3_30b_a3b_layers,
    "bert-large": bert_large,
    "vit-l-16": vit_large_16,
}


def text_model(
    name: str,
    model_type: type[nn.Module],
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    constants: dict[str, Any],
) -> Benchmarked:
    """A model of token ids, called with ``constants``, too; up to 256 sequences, as long as it has positions."""
    model = initialized(model_type, config, device, dtype)
    tell_tokens_apart(model)

    def inputs(batch: int, tokens: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(0, config.vocab_size, (batch, tokens), device=device), **constants}

    most = config.max_position_embeddings
    sizes = {0: torch.export.Dim("batch", max=256), 1: torch.export.Dim("sequence", min=2, max=most)}
    shapes = {"input_ids": sizes, **dict.fromkeys(constants)}
    return Benchmarked(f"{name}, {config.num_hidden_layers} layers", model, inputs(2, 64), shapes, inputs)


def image_model(name: str, config: Any, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    """A ViT of up to 256 images of its configuration's size."""
    from transformers import ViTModel

    model = initialized(ViTModel, config, device, dtype)

    def inputs(batch: int, _: int) -> dict[str, Any]:
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, device=device, dtype=dtype)}

    shapes = {"pixel_values": {0: torch.export.Dim("batch", max=256)}}
    return Benchmarked(f"{name}, {config.num_hidden_layers} layers", model, inputs(2, 0), shapes, inputs)


def tell_tokens_apart(model: nn.Module, deviation: float = 1.0) -> None:
    """Make embeddings as large as what layers add to them, or larger, as training does.

    With those that transformers begins training with, all that differs between tokens is small beside what attention
    adds to each, the mean of random values, so that they become one another: in the fourth layer of Qwen3-30B-A3B's
    shape the mean cosine of 64 tokens is 0.84, and 31 of 128 experts get all of them. With these it is 0.36, and 88 do
    (109 in the mean of four layers), which is what experts are trained for and what decides how many weights are read.
    """
    nn.init.normal_(model.get_input_embeddings().weight, std=deviation)  # type: ignore[operator]  # an embedding of tensors


def initialized(
    model_type: Callable[[Any], nn.Module], config: Any, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """The model with random weights, the same each time."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return model_type(config).eval()
    finally:
        torch.set_default_dtype(default)
