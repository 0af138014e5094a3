"""The language models whose generation is benchmarked: whole, with random weights, and as a program with entries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from tkc.bench.decoding import StaticCached
from tkc.bench.models import initialized, tell_tokens_apart
from tkc.runtime.program import Program

LANGUAGE_MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama-3.1-8b": (
        "llama",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
        },
    ),
}
"""Models by name: their type in transformers, and the options of its configuration."""

_SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
"""What makes such models small."""


def language_model(
    name: str, layers: int | None, positions: int, small: bool, device: torch.device, dtype: torch.dtype
) -> Any:
    """A causal language model of ``name``, a key of :data:`LANGUAGE_MODELS`, with random weights.

    It has ``layers`` layers (its own number, where that is ``None``), room for so many ``positions``, and no token that
    ends a text. ``small``: of the same type, but such that two CPU cores bear it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, options = LANGUAGE_MODELS[name]
    chosen = {key: _SMALL.get(key, value) if small else value for key, value in options.items()}
    if layers is not None:
        chosen["num_hidden_layers"] = layers
    marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, **chosen, **marks, max_position_embeddings=positions)
    model = initialized(AutoModelForCausalLM.from_config, config, device, dtype)
    tell_tokens_apart(model)
    return model


class CachedModel(StaticCached):
    """The model as the entries of a program call it, with any number of tokens."""

    def forward(self, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        """The logits ``[batch, 1, vocabulary]`` behind ``input_ids [batch, tokens]``, which stand at the places
        ``cache_position [tokens]``."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(cache_position[0])
        logits: torch.Tensor = self.model(
            input_ids=input_ids,
            position_ids=cache_position[None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits


def generating_program(model: Any, batch: int, length: int, target: str, database: Path | None = None) -> Program:
    """A program with the entries ``prefill``, of any number of tokens, and ``decode``, over one cache for ``length``
    tokens of each of ``batch`` sequences."""
    from tkc.api import compile
    from tkc.frontend.entries import Entry

    device = model.device

    def inputs(tokens: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(batch, tokens, dtype=torch.int64, device=device)
        return {"input_ids": ids, "cache_position": torch.arange(tokens, device=device)}

    tokens = Dim("tokens", min=2, max=length)
    entries = {
        "prefill": Entry(
            example_kwargs=inputs(min(8, length)),
            dynamic_shapes={"input_ids": {1: tokens}, "cache_position": {0: tokens}},
        ),
        "decode": Entry(example_kwargs=inputs(1)),
    }
    program = compile(CachedModel(model, batch, length), entries=entries, target=target, database=database)
    assert isinstance(program, Program)
    return program
