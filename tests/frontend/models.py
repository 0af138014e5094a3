"""The transformer models that TKC is tried on: real architectures from transformers, tiny, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

transformers = pytest.importorskip("transformers")

VOCABULARY = 64


@dataclass(frozen=True)
class Case:
    """A model and how it is exported: example inputs at ``(batch, sequence)``, and which of their axes are symbolic."""

    name: str
    build: Callable[..., nn.Module]
    inputs: Callable[[int, int], dict[str, Any]]
    dynamic_shapes: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def model(self, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
        """The model in evaluation mode, with the same random weights each time."""
        torch.manual_seed(0)
        return self.build(**{**self.options, **changes}).to(dtype).eval()


_BATCH, _SEQUENCE = Dim("batch", min=1, max=64), Dim("sequence", min=2, max=64)
_TOKENS = {0: _BATCH, 1: _SEQUENCE}

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_DECODER = {**_TEXT, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def _causal_inputs(batch: int, sequence: int) -> dict[str, Any]:
    return {"input_ids": _tokens(batch, sequence), "use_cache": False}


def _encoder_inputs(batch: int, sequence: int) -> dict[str, Any]:
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[-1, sequence // 2 + 1 :] = 0
    return {"input_ids": _tokens(batch, sequence), "attention_mask": mask}


def _image_inputs(batch: int, _: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(batch))}


def _tokens(batch: int, sequence: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * batch + sequence)
    return torch.randint(0, VOCABULARY, (batch, sequence), generator=generator)


def _builder(model: str, config: str) -> Callable[..., nn.Module]:
    def build(**options: Any) -> nn.Module:
        implementation = options.pop("attn_implementation", "sdpa")
        settings = getattr(transformers, config)(**options)
        made: nn.Module = getattr(transformers, model)._from_config(settings, attn_implementation=implementation)
        return made

    return build


def _causal(name: str, prefix: str, **options: Any) -> Case:
    build = _builder(f"{prefix}ForCausalLM", f"{prefix}Config")
    return Case(name, build, _causal_inputs, {"input_ids": _TOKENS, "use_cache": None}, options)


BERT = Case(
    "bert",
    _builder("BertModel", "BertConfig"),
    _encoder_inputs,
    {"input_ids": _TOKENS, "attention_mask": _TOKENS},
    _TEXT,
)
VIT = Case(
    "vit",
    _builder("ViTModel", "ViTConfig"),
    _image_inputs,
    {"pixel_values": {0: _BATCH}},
    {
        **{key: _TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
        "image_size": 32,
        "patch_size": 8,
    },
)
LLAMA = _causal("llama", "Llama", **_DECODER)
QWEN3 = _causal("qwen3", "Qwen3", **_DECODER, head_dim=8)
MIXTRAL = _causal("mixtral", "Mixtral", **_DECODER, num_local_experts=4, num_experts_per_tok=2)
QWEN3_MOE = _causal("qwen3_moe", "Qwen3Moe", **_DECODER, **_EXPERTS, head_dim=8, num_experts=8)
DEEPSEEK_V3 = _causal(
    "deepseek_v3",
    "DeepseekV3",
    **{**_DECODER, "num_key_value_heads": 4},
    **_EXPERTS,
    n_routed_experts=8,
    n_shared_experts=1,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
)

# Turns queries and keys as complex numbers; its group-limited routing ranks groups as no kernel does.
DEEPSEEK_V2 = _causal(
    "deepseek_v2",
    "DeepseekV2",
    **{**DEEPSEEK_V3.options, "topk_method": "greedy"},
)

CASES = (BERT, VIT, LLAMA, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
MOE_CASES = (MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
