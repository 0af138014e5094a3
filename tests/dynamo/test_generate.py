"""``model.generate`` of transformers over a compiled forward pass: the same tokens as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from tests.dynamo.graphs import Graphs
from tkc.dynamo.backend import tkc

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": None,
}


def language_model(name: str, seed: int = 0, **options: Any) -> Any:
    """A language model of one layer."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def compiled(model: Any, monkeypatch: pytest.MonkeyPatch, dynamic: bool | None) -> None:
    """Have ``model`` call its forward pass as TKC compiles it."""
    monkeypatch.setattr(model, "forward", torch.compile(model.forward, backend=tkc, dynamic=dynamic))


def check_tokens(model: Any, monkeypatch: pytest.MonkeyPatch, dynamic: bool | None, **options: Any) -> None:
    """Assert that ``model.generate`` gives the same tokens with and without TKC, for a prompt, or two with padding."""
    torch.manual_seed(1)
    prompt = torch.randint(1, 200, (options.pop("batch", 2), 9))
    mask = torch.ones_like(prompt)
    if len(prompt) > 1:
        mask[0, :3] = prompt[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 7, "do_sample": False, **options}
    torch.manual_seed(2)
    expected = model.generate(prompt, **options)
    compiled(model, monkeypatch, dynamic)
    torch.manual_seed(2)
    assert torch.equal(model.generate(prompt, **options), expected)


def check_in_place(graphs: Graphs, rows: int) -> None:
    """Assert that the last graph returns logits alone, and writes keys and values of ``rows`` where they are."""
    executable = graphs.made[-1].executable
    assert executable is not None
    shapes = {spec.name: spec.shape for spec in executable.signature.inputs}
    updated = [shapes[name] for name in executable.signature.updated_inputs]
    assert [shape for shape in updated if shape] == [(2, 2, rows, 16)] * 2
    assert [spec.shape for spec in executable.signature.outputs] == [(2, 1, 200)]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("dynamic", "cache"), [(True, None), (None, "static")], ids=["dynamic", "static"])
def test_tokens_are_those_of_eager(
    monkeypatch: pytest.MonkeyPatch, graphs: Graphs, dynamic: bool | None, cache: str | None
) -> None:
    """With left padding, by one forward pass for prompts and steps of all lengths; sampled from the likeliest."""
    sampling = {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.9}
    check_tokens(language_model("Llama"), monkeypatch, dynamic, cache_implementation=cache, **sampling)
    if cache == "static":
        check_in_place(graphs, 15)


@pytest.mark.daily(4)
@pytest.mark.parametrize(("dynamic", "cache"), [(True, None), (None, "static")], ids=["dynamic", "static"])
def test_sliding_windows(
    monkeypatch: pytest.MonkeyPatch, graphs: Graphs, dynamic: bool | None, cache: str | None
) -> None:
    """Whose caches, shorter than the prompt, roll."""
    model = language_model("Mistral", sliding_window=5)
    check_tokens(model, monkeypatch, dynamic, cache_implementation=cache)
    if cache == "static":
        check_in_place(graphs, 5)


@pytest.mark.daily(4)
@pytest.mark.parametrize("draft", ["model", "prompt"])
def test_assisted_decoding(monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    """A draft's tokens are checked several at once, by their logits alone: how many is a symbolic number."""
    options = {"assistant_model": language_model("Llama", 1)} if draft == "model" else {"prompt_lookup_num_tokens": 3}
    check_tokens(language_model("Llama"), monkeypatch, True, batch=1, **options)


@pytest.mark.daily(8)
def test_continuous_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    """``generate_batch``, whose paged cache breaks the graph in each layer."""
    model = language_model("Llama")
    model.set_attn_implementation("sdpa")
    options = {
        "generation_config": GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0),
        "continuous_batching_config": ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=64),
    }
    prompts = [[5, 6, 7, 8, 9], [10, 11, 12]]

    def tokens() -> list[list[int]]:
        outputs = model.generate_batch(prompts, **options)
        assert [output.error for output in outputs.values()] == [None, None]
        return [output.generated_tokens for output in outputs.values()]

    expected = tokens()
    assert [len(each) for each in expected] == [4, 4]
    compiled(model, monkeypatch, True)
    assert tokens() == expected
