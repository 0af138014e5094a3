"""``model.generate`` of transformers over a compiled forward pass: the same tokens as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tkc.dynamo.backend import tkc


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A language model of one layer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.daily(2)
@pytest.mark.parametrize(("dynamic", "cache"), [(True, None), (None, "static")], ids=["dynamic", "static"])
def test_tokens_are_those_of_eager(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, dynamic: bool | None, cache: str | None
) -> None:
    """With left padding, by one forward pass for prompts and decode steps of all lengths."""
    prompt = torch.randint(1, 200, (2, 9))
    mask = torch.ones_like(prompt)
    mask[0, :3] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(prompt, **options)
    if cache is not None:
        options["cache_implementation"] = cache
    monkeypatch.setattr(model, "forward", torch.compile(model.forward, backend=tkc, dynamic=dynamic))
    assert torch.equal(model.generate(prompt, **options), expected)
