"""The models that are benchmarked: what their random weights make of tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeModel

from tkc.bench.models import text_model


def test_tokens_do_not_become_one_another() -> None:
    """Through four layers: else experts would get all of them or none, as no trained model's do."""
    config: Any = Qwen3MoeConfig(  # type: ignore[call-arg]
        vocab_size=256,
        hidden_size=512,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=16,
        num_experts_per_tok=4,
    )
    case = text_model("a model", Qwen3MoeModel, config, torch.device("cpu"), torch.float32, {"use_cache": False})
    with torch.no_grad():
        states = case.model(**case.inputs(1, 64))[0][0]
    alike = torch.nn.functional.cosine_similarity(states[:, None], states[None], dim=-1)
    assert alike.mean() < 0.4
