"""Decode steps that are benchmarked: one token a sequence, behind a key/value cache that the step updates in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from tkc.bench.models import Benchmarked, initialized, llama_3_8b_config


class StaticCached(nn.Module):
    """A causal language model with a static cache of ``length`` tokens for each of ``batch`` sequences.

    It is transformers' ``StaticCache``, whose tensors are buffers: a program's state, and what ``torch.compile`` is
    told to find where it is.
    """

    def __init__(self, model: Any, batch: int, length: int) -> None:
        from transformers import StaticCache

        super().__init__()
        self.model = model
        config = model.config
        cache: Any = StaticCache(config=config, max_cache_len=length)
        cache.early_initialization(batch, config.num_key_value_heads, config.head_dim, model.dtype, model.device)
        self.cache = cache
        layers: list[Any] = cache.layers
        for number, layer in enumerate(layers):
            self.register_buffer(f"keys_{number}", layer.keys)
            self.register_buffer(f"values_{number}", layer.values)
            self.register_buffer(f"length_{number}", layer.cumulative_length)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """As for every module (moves it, changes its dtype); the cache goes along."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # PyTorch's has no types
        for number, layer in enumerate(self.cache.layers):
            layer.keys, layer.values = self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}")
            layer.cumulative_length = self.get_buffer(f"length_{number}")
        return self


class DecodeStep(StaticCached):
    """One step behind ``length`` random keys and values a sequence."""

    def __init__(self, model: Any, batch: int, length: int) -> None:
        super().__init__(model, batch, length)
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()

    def forward(self, input_ids: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor]:
        """The logits ``[batch, 1, vocabulary]`` of the tokens ``input_ids [batch, 1]``, which stand at ``position []``
        of the cache; behind it nothing is seen."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position)
        return (self.model(input_ids=input_ids, past_key_values=self.cache, use_cache=True).logits,)


def llama_3_8b_decode(layers: int, device: torch.device, dtype: torch.dtype, batch: int, cached: int) -> Benchmarked:
    """One decode step of layers of Llama-3-8B's shape, the last of ``cached`` tokens of each sequence."""
    from transformers import LlamaForCausalLM

    config = llama_3_8b_config(layers, most=cached)
    step = DecodeStep(initialized(LlamaForCausalLM, config, device, dtype), batch, cached).eval()

    def inputs(batch: int, cached: int) -> dict[str, Any]:
        ids = torch.randint(0, config.vocab_size, (batch, 1), device=device)
        return {"input_ids": ids, "position": torch.tensor(cached - 1, device=device)}

    caches = tuple(name for name, _ in step.named_buffers() if name.startswith(("keys_", "values_")))
    name = f"llama-3-8b-decode, {layers} layers"
    return Benchmarked(name, step, inputs(batch, cached), None, inputs, caches)


Factory = Callable[[int, torch.device, torch.dtype, int, int], Benchmarked]
DECODE_STEPS: dict[str, Factory] = {"llama-3-8b-decode": llama_3_8b_decode}
