"""Models compile for every architecture in the table of devices, where there is no GPU.

With nvcc one takes minutes. A run compiles one model for one architecture, by the date, so that all pairs are seen in a
month; ``TKC_ALL_ARCHITECTURES=1`` (``make architectures``) compiles all.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import tkc
from tkc.kernels.devices import ARCHITECTURES


@dataclass(frozen=True)
class Model:
    """A model with random weights, example inputs, and kernels that its executable must have."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kernels: set[str]


def _decoder() -> Model:
    """A layer of Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    kernels = {"normalization", "rotary", "attention.prefill", "matmul", "matmul.gated"}
    return Model(LlamaForCausalLM(config), (torch.zeros(1, 64, dtype=torch.int64),), {"use_cache": False}, kernels)


def _convolutions() -> Model:
    """A residual block and a classifier."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 32, 3, padding=1)
            self.second = nn.Conv2d(32, 32, 3, padding=1)
            self.norm = nn.BatchNorm2d(32)
            self.classifier = nn.Linear(32, 16)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(image))
            x = torch.relu(self.norm(self.second(x)) + x)
            return self.classifier(x.mean((2, 3)))

    return Model(Network(), (torch.zeros(2, 3, 32, 32, dtype=torch.bfloat16),), {}, {"matmul"})


def _demo() -> Model:
    """The demo's mixture of experts, with one layer."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(  # type: ignore[call-arg]
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=192,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
    )
    kernels = {"moe.topk_gate", "moe.permute", "matmul.grouped", "attention.prefill"}
    return Model(Qwen3MoeForCausalLM(config), (torch.zeros(1, 64, dtype=torch.int64),), {"use_cache": False}, kernels)


def _encoder() -> Model:
    """A layer of BERT."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2
    )
    tokens = torch.zeros(1, 64, dtype=torch.int64)
    return Model(BertModel(config, add_pooling_layer=False), (tokens,), {}, {"normalization", "matmul"})


MODELS: dict[str, Callable[[], Model]] = {
    "decoder": _decoder,
    "convolutions": _convolutions,
    "mixture of experts": _demo,
    "encoder": _encoder,
}
PAIRS = list(itertools.product(ARCHITECTURES, MODELS))


def chosen() -> list[tuple[str, str]]:
    """The pairs that this run compiles."""
    if os.environ.get("TKC_ALL_ARCHITECTURES"):
        return PAIRS
    return [PAIRS[datetime.datetime.now(datetime.UTC).date().toordinal() % len(PAIRS)]]


@pytest.mark.nvcc
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("arch", "name"), chosen())
def test_a_model_compiles_without_a_gpu(arch: str, name: str) -> None:
    """With the kernels that it has on every architecture, and nothing to say about the device."""
    torch.manual_seed(0)
    model = MODELS[name]()
    module = model.module.to(torch.bfloat16).eval()
    executable = tkc.compile(module, model.args, model.kwargs, target=f"cuda:{arch}")
    assert str(executable.target) == f"cuda:{arch}"
    assert model.kernels <= {use.kernel for use in executable.report.uses}
    assert "no row in the table of devices" not in str(executable.report)
