"""Queries and keys that are embedded by the same angles are one call, whatever stands between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.frontend.torch.importer import import_torch
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.fused_rotary import FUSED_ROTARY
from tkc.passes.rules.rotary import ROTARY

RULES = (FUSED_ROTARY, ROTARY)
BATCH, SEQUENCE, HEADS, KEY_HEADS, SIZE = 3, 5, 4, 2, 8

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUERIES, KEYS = normal(BATCH, SEQUENCE, HEADS, SIZE, seed=1), normal(BATCH, SEQUENCE, KEY_HEADS, SIZE, seed=2)
COS, SIN = normal(BATCH, SEQUENCE, SIZE, seed=3), normal(BATCH, SEQUENCE, SIZE, seed=4)
INPUTS = (QUERIES, KEYS, COS, SIN)


def turned(x: Tensor) -> Tensor:
    """As transformers writes it."""
    first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-second, first), dim=-1)


def embedded(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads behind the sequence; the angles are viewed, and cast, for this tensor alone."""
    cos, sin = cos.to(x.dtype).unsqueeze(2), sin.to(x.dtype).unsqueeze(2)
    return x * cos + turned(x) * sin


def swapped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads before the sequence, as attention wants them."""
    x = x.transpose(1, 2)
    return x * cos[:, None] + turned(x) * sin[:, None]


def normalized(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """By the mean square of each head."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def parameters(**changes: Any) -> RotaryParameters:
    """Those of queries and keys, but for ``changes``."""
    return RotaryParameters(
        **({"heads": HEADS, "size": SIZE, "dtype": "float32", "shared_angles": False, "key_heads": KEY_HEADS} | changes)
    )


MERGED: dict[str, tuple[Function, RotaryParameters]] = {
    "heads last": (lambda q, k, c, s: (embedded(q, c, s), embedded(k, c, s)), parameters()),
    "heads swapped": (lambda q, k, c, s: (swapped(q, c, s), swapped(k, c, s)), parameters()),
    "keys first": (lambda q, k, c, s: (embedded(k, c, s), embedded(q, c, s)), parameters()),
    "as many keys": (lambda q, k, c, s: embedded(q, c, s) @ embedded(q + 1, c, s).mT, parameters(key_heads=HEADS)),
    "shared angles": (
        lambda q, k, c, s: (embedded(q, c[:1], s[:1]), embedded(k, c[:1], s[:1])), parameters(shared_angles=True)
    ),
    "normalized": (
        lambda q, k, c, s: (embedded(normalized(q), c, s), embedded(normalized(k), c, s)), parameters(epsilon=1e-6)
    ),
    "own weights": (
        lambda q, k, c, s: (
            swapped(normalized(q) * q[0, 0, 0], c, s), swapped(normalized(k) * k[0, 0, 0], c, s)
        ),
        parameters(epsilon=1e-6, weight=True),
    ),
    "the first is used between": (
        lambda q, k, c, s: ((turned_q := embedded(q, c, s)), turned_q.exp(), embedded(k, c, s)), parameters()
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "expected"), MERGED.values(), ids=MERGED)
def test_merged(function: Function, expected: RotaryParameters) -> None:
    """The tensor with more heads is the queries."""
    (call,) = checked_substitutions(imported(function, *INPUTS), *INPUTS, rules=RULES)
    assert (call.rule, call.parameters, call.count) == (FUSED_ROTARY.name, expected, 1)


def test_sixteen_bits_with_angles_cast_for_each() -> None:
    """As models do that compute angles in float32 and embed in two calls of one function."""
    inputs = (QUERIES.bfloat16(), KEYS.bfloat16(), COS, SIN)
    module = imported(lambda q, k, c, s: (embedded(q, c, s), embedded(k, c, s)), *inputs)
    (call,) = checked_substitutions(module, *inputs, rules=RULES, rtol=2**-6)
    assert call.parameters == parameters(dtype="bfloat16")


def test_each_layer_is_a_call_of_its_own() -> None:
    """All use the same angles; keys go with the queries beside them."""

    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for _ in range(3):
            queries, keys = embedded(q, cos, sin), embedded(k, cos, sin)
            q = q + queries * keys.mean()
            k = k + keys
        return q + k.mean()

    (call,) = checked_substitutions(imported(function, *INPUTS), *INPUTS, rules=RULES)
    assert (call.parameters, call.count) == (parameters(), 3)


def heads_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads before the sequence in memory, too."""
    x = x.transpose(1, 2).exp()
    return x * cos[:, None] + turned(x) * sin[:, None]


APART: dict[str, Function] = {
    "other angles": lambda q, k, c, s: (embedded(q, c, s), embedded(k, c + 1, s)),
    "angles exchanged": lambda q, k, c, s: (embedded(q, c, s), embedded(k, s, c)),
    "angles rounded for one": lambda q, k, c, s: (embedded(q, c, s), embedded(k, c.half().float(), s)),
    "one is normalized": lambda q, k, c, s: (embedded(normalized(q), c, s), embedded(k, c, s)),
    "other epsilons": lambda q, k, c, s: (embedded(normalized(q), c, s), embedded(normalized(k, 0.1), c, s)),
    "other layouts": lambda q, k, c, s: (embedded(q, c, s), heads_first(k, c, s)),
    "other batches": lambda q, k, c, s: (embedded(q, c[:1], s[:1]), embedded(k.repeat(2, 1, 1, 1), c[:1], s[:1])),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_unlike_tensors_are_embedded_apart(function: Function) -> None:
    """No call takes both."""
    calls = checked_substitutions(imported(function, *INPUTS), *INPUTS, rules=RULES)
    assert {call.rule for call in calls} == {ROTARY.name} and sum(call.count for call in calls) == 2


def test_one_that_needs_the_other() -> None:
    """The refusal says so, and each is a call."""

    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return embedded(k + embedded(q, cos, sin).mean(2, keepdim=True), cos, sin)

    module = imported(function, *INPUTS)
    calls = checked_substitutions(module, *INPUTS, rules=RULES)
    assert sorted(call.parameters.heads for call in calls) == [KEY_HEADS, HEADS]
    (refused,) = substituted(module, RULES)[1].refusals
    assert refused.rule == FUSED_ROTARY.name and "needed to compute its inputs" in refused.reason


SHAPE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS = {
    "Qwen3": {"key_heads": 2, "epsilon": 1e-6, "weight": True},
    "Gemma3": {"key_heads": 2, "epsilon": 1e-6, "weight": True},  # whose weights are one less than what they stand for
    "GPTNeoX": {"key_heads": 4, "epsilon": None, "weight": False},  # which turns a part of each head
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MODELS)
def test_one_call_in_each_layer_of_a_model(name: str) -> None:
    """As transformers writes them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")(**SHAPE)
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.rand_like(weight) / 8)  # normalizations, too, scale each channel by another number
    ids = torch.randint(0, 32, (2, 7))
    found = import_torch(model, (), {"input_ids": ids, "use_cache": False})
    inputs = (ids, *(weight.detach() for weight in found.parameters.values()))
    (call,) = checked_substitutions(Canonicalize()(found.module), *inputs, rules=RULES)
    assert call.count == 2
    assert {field: getattr(call.parameters, field) for field in MODELS[name]} == MODELS[name]


def test_one_tensor_after_values_that_are_no_tensors() -> None:
    """What is embedded alone is looked for a partner past tuples, and stays alone."""

    def function(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        largest, places = x.topk(2, -1)
        return embedded(x, cos, sin), largest + places

    inputs = (QUERIES, COS, SIN)
    (call,) = checked_substitutions(imported(function, *inputs), *inputs, rules=RULES)
    assert (call.rule, call.parameters) == (ROTARY.name, parameters(key_heads=0))
