"""Decode steps of language models with transformers' static key/value cache, as users export them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tkc.runtime.report import Report

transformers = pytest.importorskip("transformers")
from transformers import StaticCache  # noqa: E402
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache  # noqa: E402

LENGTH = 16
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": LENGTH,
}


def language_model(name: str, attention: str = "sdpa") -> Any:
    """A tiny model of an architecture, with the same random weights each time."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE)
    return getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation=attention).eval()


def with_cache(name: str, batch: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """The model as transformers wraps it for export: the cache is in its buffers."""
    model = language_model(name).to(device, dtype)
    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    return TorchExportableModuleWithStaticCache(model, batch_size=batch, max_cache_len=LENGTH)


def step(batch: int, position: int) -> dict[str, torch.Tensor]:
    """The inputs of a decode step."""
    return {"input_ids": torch.randint(0, 128, (batch, 1)), "cache_position": torch.tensor([position])}


class CacheAsInput(nn.Module):
    """A language model whose keys and values ``[batch, heads, LENGTH, size]`` are inputs, which it updates."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: torch.Tensor, position: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        """The logits of tokens ``ids [batch, sequence]``, of which the first stands at ``position []``."""
        cache: Any = StaticCache(config=self.model.config, max_cache_len=LENGTH)
        for layer, layer_keys, layer_values in zip(cache.layers, keys, values, strict=True):
            layer.lazy_initialization(layer_keys, layer_values)
            layer.keys, layer.values, layer.cumulative_length = layer_keys, layer_values, position.clone()
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits


def inputs(batch: int, tokens: int, position: int) -> tuple[Any, ...]:
    """Random tokens and caches for :class:`CacheAsInput`."""
    keys, values = ([torch.randn(batch, 2, LENGTH, 64) for _ in range(2)] for _ in range(2))
    return torch.randint(0, 128, (batch, tokens)), torch.tensor(position), keys, values


def kernel_calls(report: Report) -> dict[str, int]:
    """How often each kernel is called."""
    counts: dict[str, int] = {}
    for use in report.uses:
        counts[use.kernel] = counts.get(use.kernel, 0) + use.calls
    return counts


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("name", "batch", "strict", "kernels"), [("Llama", 4, False, "auto"), ("Qwen3", 1, True, "none")]
)
def test_eight_tokens_agree_with_pytorch(name: str, batch: int, strict: bool, kernels: str) -> None:
    """One after the other: logits, keys and values after each step; with kernels, attention is the decode kernel."""
    model = with_cache(name, batch)
    with torch.no_grad():
        program = torch.export.export(with_cache(name, batch), (), step(batch, 0), strict=strict)
    executable = tkc.compile(program, kernels=kernels, database=False)
    assert kernel_calls(executable.report).get("attention.decode") == (2 if kernels == "auto" else None)
    assert {spec.name for spec in executable.signature.state} == {
        f"{part}_{layer}" for part in ("key_cache", "value_cache", "cumulative_length") for layer in range(2)
    }
    buffers = dict(model.named_buffers())
    for position in range(8):
        token = step(batch, position)
        with torch.no_grad():
            expected = model(**token)
        torch.testing.assert_close(executable(**token), expected, rtol=1e-4, atol=1e-5)
        for state, tensor in executable.state.items():
            torch.testing.assert_close(tensor, buffers[state], rtol=1e-4, atol=1e-5)


@pytest.mark.daily(3)
def test_caches_as_inputs_with_symbolic_sizes() -> None:
    """A prefill of several tokens, then a decode step, both into the caller's tensors, at two batch sizes."""
    model = CacheAsInput(language_model("Llama", attention="eager"))
    batch, tokens = Dim("batch", max=8), Dim("tokens", min=2, max=LENGTH)
    caches = [{0: batch}] * 2
    with torch.no_grad():
        prefill, decode = (
            tkc.compile(
                model,
                inputs(3, count, 0),
                dynamic_shapes=({0: batch, 1: tokens} if count > 1 else {0: batch}, None, caches, caches),
                kernels="none",
                database=False,
            )
            for count in (4, 1)
        )
    for size in (1, 3):
        ids, position, *state = inputs(size, 5, 0)
        expected = copy.deepcopy(state)
        for executable, taken in ((prefill, slice(0, 4)), (decode, slice(4, 5))):
            with torch.no_grad():
                logits = model(ids[:, taken], position, *expected)
            found = executable(ids[:, taken].contiguous(), position, *state)
            torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-4)
            position = torch.tensor(4)


@pytest.mark.nvcc
@pytest.mark.parametrize("batch", [1, 4])
def test_decode_step_for_the_gpu(batch: int) -> None:
    """Rotary embedding, decode attention and products of each layer are kernels; nothing copies a cache."""
    report = tkc.explain(
        with_cache("Llama", batch, torch.bfloat16), (), step(batch, 0), target="cuda:sm_90a", database=False
    )
    calls = kernel_calls(report)
    assert (calls["attention.decode"], calls["rotary"], calls["matmul.gated"]) == (2, 2, 2)
    assert calls["matmul"] == 7  # of each layer query, key and value as one, the output, and down; then the logits
    assert not any("attention" in refused.rule for refused in report.refused)
    scheduled = {entry.function: entry.scheduled_by for entry in report.scheduled}
    assert {way for name, way in scheduled.items() if name.startswith("write_rows")} == {"gpu-elementwise"}
    assert "scatter_elements" not in scheduled
    # What copies is a counter of each layer but the first, whose length they share.
    assert sum(entry.calls for entry in report.scheduled if entry.function.startswith("copy")) == 1


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs what is built for it")
def test_decode_step_is_built_for_the_gpu_without_one() -> None:
    """The generated code, with its functions in place."""
    with torch.no_grad():
        model = with_cache("Llama", 2, torch.bfloat16)
        executable = tkc.compile(model, (), step(2, 0), target="cuda:sm_90a", kernels="none", database=False)
    assert executable.code.is_file()
    with pytest.raises(tkc.TargetError, match="cannot run here"):
        executable.reset()


@pytest.mark.gpu
def test_eight_tokens_on_the_gpu() -> None:
    """In bfloat16, against PyTorch in float32 on the same weights; the cache is read and written on the GPU."""
    with torch.no_grad():
        half = with_cache("Llama", 2, torch.bfloat16, "cuda")
        exact = with_cache("Llama", 2)
        exact.model.load_state_dict(half.model.state_dict())
        executable = tkc.compile(half, (), {k: v.cuda() for k, v in step(2, 0).items()}, target="cuda")
    for position in range(8):
        token = step(2, position)
        with torch.no_grad():
            expected = exact(**token)
        found = executable(**{name: value.cuda() for name, value in token.items()})
        torch.testing.assert_close(found.cpu().float(), expected, rtol=0.05, atol=0.02)
    buffers = dict(exact.named_buffers())
    for name, tensor in executable.state.items():
        torch.testing.assert_close(tensor.cpu().to(buffers[name].dtype), buffers[name], rtol=0.05, atol=0.02)
