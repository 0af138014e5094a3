"""The benchmarked models in sizes that two CPU cores bear: to try a benchmark, not to tell how fast anything is."""

from __future__ import annotations

from typing import Any

import torch

from tkc.bench.models import Benchmarked, Factory, image_model, text_model

_WIDTH = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
_TEXT = {**_WIDTH, "vocab_size": 256, "max_position_embeddings": 512}
_DECODER = {**_TEXT, "num_key_value_heads": 2}
_EXPERTS = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def _llama(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    from transformers import LlamaConfig, LlamaModel

    config: Any = LlamaConfig(**_DECODER, num_hidden_layers=layers)  # type: ignore[arg-type]
    return text_model("small llama", LlamaModel, config, device, dtype, {"use_cache": False})


def _qwen3_moe(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config: Any = Qwen3MoeConfig(**_DECODER, **_EXPERTS, num_hidden_layers=layers)  # type: ignore[arg-type]
    return text_model("small qwen3-moe", Qwen3MoeModel, config, device, dtype, {"use_cache": False})


def _bert(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    from transformers import BertConfig, BertModel

    config: Any = BertConfig(**_TEXT, num_hidden_layers=layers)  # type: ignore[arg-type]
    return text_model("small bert", BertModel, config, device, dtype, {})


def _vit(layers: int, device: torch.device, dtype: torch.dtype) -> Benchmarked:
    from transformers import ViTConfig

    config: Any = ViTConfig(**_WIDTH, image_size=64, num_hidden_layers=layers)  # type: ignore[arg-type]
    return image_model("small vit", config, device, dtype)


SMALL_MODELS: dict[str, Factory] = {
    "llama-3-8b": _llama,
    "qwen3-30b-a3b": _qwen3_moe,
    "bert-large": _bert,
    "vit-l-16": _vit,
}
"""One of each type of :data:`tkc.bench.models.MODELS`, by the same names."""
