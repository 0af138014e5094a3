"""Attention of transformers' models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from tests.passes.attention_forms import DIMS, HEADS, RULES, parameters
from tests.passes.reference_execution import substituted
from tkc.frontend.torch.importer import import_torch
from tkc.passes.canonical.canonicalize import Canonicalize

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 96,
    "vocab_size": 50,
}
LATENT = {
    "num_key_value_heads": HEADS, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": ({}, {"causal": None, "q_layout": "bshd", "k_layout": "bshd"}),
    "llama": ({"num_key_value_heads": 2}, {"num_kv_heads": 2}),
    "deepseek_v3": (LATENT, {"head_size": 48, "value_head_size": 32, "scale": 48**-0.5, "v_layout": "bhsd"}),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "config", "expected"), [(name, *model) for name, model in MODELS.items()], ids=MODELS)
def test_models(name: str, config: dict[str, Any], expected: dict[str, Any], implementation: str) -> None:
    """The masks that transformers builds from positions vanish, and every layer's attention is one call."""
    config = transformers.AutoConfig.for_model(name, **SIZES, **config, attn_implementation=implementation)
    model = transformers.AutoModel.from_config(config).eval()
    tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    options = {} if name == "bert" else {"use_cache": False}
    axes = {"input_ids": {0: DIMS["batch"], 1: DIMS["tokens"]}, **dict.fromkeys(options)}
    module = Canonicalize()(import_torch(model, (), {"input_ids": tokens, **options}, axes).module)
    (call,) = substituted(module, RULES)[1].substitutions
    found, wanted = call.parameters, parameters(causal="top_left", v_layout="bshd", out_layout="bshd")
    assert found == replace(wanted, **(expected | {"scale": found.scale}))
    assert (call.count, found.scale) == (2, pytest.approx(expected.get("scale", wanted.scale)))


WINDOWED = {
    "mistral": ({"sliding_window": 4}, {"causal": "top_left", "window": 3}),
    "gemma2": (
        {"sliding_window": 4, "head_dim": 16, "attn_implementation": "eager", "layer_types": ["sliding_attention"] * 2},
        {"causal": "top_left", "window": 3, "softcap": 50.0, "scale": 256**-0.5},
    ),
    "gpt_oss": (
        {"sliding_window": 4, "head_dim": 16, "attn_implementation": "eager", "num_local_experts": 4,
         "layer_types": ["sliding_attention"] * 2},
        {"causal": "top_left", "window": 3, "sinks": True},
    ),
    "modernbert": (
        {"local_attention": 4, "global_attn_every_n_layers": 9, "pad_token_id": 0, "cls_token_id": 1,
         "sep_token_id": 2, "layer_types": ["sliding_attention"] * 2},
        {"window": 2, "num_kv_heads": HEADS},
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("name", "config", "expected"), [(name, *model) for name, model in WINDOWED.items()])
def test_models_with_windows(name: str, config: dict[str, Any], expected: dict[str, Any]) -> None:
    """Windows, capped scores and sinks as transformers' models have them; no mask tensor is left."""
    sizes = {"attn_implementation": "sdpa", "num_key_value_heads": 2, "pad_token_id": 0} | SIZES | config
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **sizes)).eval()
    tokens = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    options = {} if name == "modernbert" else {"use_cache": False}
    axes = {"input_ids": {0: DIMS["batch"], 1: DIMS["tokens"]}, **dict.fromkeys(options)}
    module = Canonicalize()(import_torch(model, (), {"input_ids": tokens, **options}, axes).module)
    (call,) = substituted(module, RULES)[1].substitutions
    found = call.parameters
    layouts = {"q_layout": found.q_layout, "k_layout": found.k_layout, "v_layout": found.v_layout}
    wanted = {"num_kv_heads": 2, "out_layout": "bshd", "scale": 0.25} | layouts | expected
    assert (call.count, found) == (2, replace(parameters(**wanted), scale=found.scale))
    assert found.scale == pytest.approx(wanted["scale"])
