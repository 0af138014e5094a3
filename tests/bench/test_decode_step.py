"""The decode benchmark on a tiny model: every contender does the same step, and one that writes nothing is noticed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import tkc.bench.decoding
import tkc.bench.model
from tkc.bench.model import THROUGH, bench_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of another shape, as quick to build as to run."""

    def config(layers: int, most: int) -> Any:
        return transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=most,
        )

    monkeypatch.setattr(tkc.bench.decoding, "llama_3_8b_config", config)


def rows(*cached: int) -> list[Any]:
    """A row for each number of cached tokens, without kernels."""
    return list(bench_model("llama-3-8b-decode", cached, 1, 2, torch.device("cpu"), torch.float32, ["none"]))


@pytest.mark.daily(1)
def test_contenders_agree_in_result_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """To float32's precision, at each number of cached tokens; what is seen of the device is noted of each."""
    monkeypatch.setattr(tkc.bench.model, "watched", lambda device: nullcontext({"MHz": 1455.0}))
    found = rows(8, 16)
    assert all(row.notes[f"{name} MHz"] == 1455.0 for row in found for name in row.milliseconds)
    assert [row.name for row in found] == [f"llama-3-8b-decode, 1 layers, 2 × {count} tokens" for count in (8, 16)]
    assert all(row.error is not None and row.error < 1e-5 and row.notes["eager error"] < 1e-5 for row in found)


@pytest.mark.daily(3)
def test_batch_invariance_is_measured_beside() -> None:
    """By turns, each setting of it too."""
    device = torch.device("cpu")
    options = {"kernels": ["none"], "batch_invariant": True}
    (row,) = bench_model("llama-3-8b-decode", [8], 1, 2, device, torch.float32, **options)  # type: ignore[arg-type]
    assert set(row.milliseconds) == {"tkc none", "tkc none, batch-invariant", "eager"}


@pytest.mark.daily(3)
def test_torch_compile_is_measured_beside() -> None:
    """By turns, with what it differs by from what ``tkc.compile`` made, in the step's result."""
    device = torch.device("cpu")
    (row,) = bench_model("llama-3-8b-decode", [8], 1, 2, device, torch.float32, ["none"], through=True)
    assert list(row.milliseconds) == ["tkc none", THROUGH, "eager"]
    assert float(row.notes[f"{THROUGH} error"]) < 1e-5 and float(row.notes[f"{THROUGH} differs by"]) < 1e-6
    share = row.milliseconds[THROUGH] / row.milliseconds["tkc none"]
    assert row.notes[f"{THROUGH} / tkc none"] == share


@pytest.mark.daily(1)
def test_a_step_that_leaves_the_cache_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is no number, because the row that it should have written is none."""

    def stale(executable: tkc.Executable) -> dict[str, torch.Tensor]:
        return {name: executable.parameters[name].clone() for name in ("keys_0", "values_0", "length_0")}

    monkeypatch.setattr(tkc.Executable, "state", property(stale))
    (row,) = rows(8)
    assert row.error != row.error
