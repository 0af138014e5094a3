"""Absorbed latent attention is found however it is written; what only resembles it is left to ordinary attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from tvm.ir import IRModule

import tkc
from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.frontend.torch.importer import import_torch
from tkc.kernels.attention.parameters import LatentParameters
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.attention import DECODE, PREFILL
from tkc.passes.rules.latent_attention import LATENT_DECODE

RULES = (LATENT_DECODE, DECODE, PREFILL)
BATCH, HEADS, KEYS, LATENT, ROPE, SCALE = 2, 4, 7, 32, 16, 0.25
BATCHES, TOKENS = Dim("batch", min=2, max=64), Dim("tokens", min=2, max=512)

Function = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUERY, QUERY_ROPE = normal(BATCH, 1, HEADS, LATENT), normal(BATCH, 1, HEADS, ROPE, seed=1)
CACHE, ROPE_CACHE = normal(BATCH, KEYS, LATENT, seed=2), normal(BATCH, KEYS, ROPE, seed=3)
APART = (QUERY, QUERY_ROPE, CACHE, ROPE_CACHE)
JOINED = (torch.cat(APART[:2], -1), torch.cat(APART[2:], -1))


def symbolic(function: Function, *inputs: Tensor) -> IRModule:
    """``function`` over a symbolic batch (first axes of its size), and tokens (second axes of their number)."""

    class Model(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return function(*inputs)

    axes = tuple({0: BATCHES, 1: TOKENS} if tensor.shape[1] == KEYS else {0: BATCHES} for tensor in inputs)
    return Canonicalize()(import_torch(Model(), inputs, dynamic_shapes={"inputs": axes}).module)


def only_call(function: Function, *inputs: Tensor, rtol: float = 1e-5) -> LatentParameters:
    """The parameters of the one latent attention that replaces both products and softmax, and computes the same."""
    module = symbolic(function, *inputs)
    (call,) = checked_substitutions(module, *inputs, rules=RULES, rtol=rtol)
    assert (call.count, call.kernel) == (1, "attention.latent_decode")
    script = substituted(module, RULES)[0]["main"].script()
    assert not any(operator in script for operator in ("softmax", "R.matmul", "R.concat", "R.strided_slice", "R.split"))
    return call.parameters


def parameters(**changes: Any) -> LatentParameters:
    """Four heads in float32, all parts apart, but for ``changes``."""
    fixed = {"num_heads": HEADS, "latent_size": LATENT, "rope_size": ROPE, "dtype": "float32", "scale": SCALE}
    return LatentParameters(**(fixed | changes))


def einsums(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor, change: Function = lambda scores: scores) -> Tensor:
    """As DeepSeek's own inference code has it, with ``change`` applied to the scaled scores."""
    scores = torch.einsum("bshc,btc->bsht", q, cache) + torch.einsum("bshr,btr->bsht", q_rope, rope)
    weights = change(scores * SCALE).softmax(dim=-1, dtype=torch.float32).type_as(q)
    return torch.einsum("bsht,btc->bshc", weights, cache)


def operator(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's own attention with one key/value head."""
    query, key = torch.cat([q, q_rope], -1).transpose(1, 2), torch.cat([cache, rope], -1)
    return F.scaled_dot_product_attention(query, key[:, None], cache[:, None], mask, scale=SCALE, enable_gqa=True)


def products(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor) -> Tensor:
    """Four-dimensional products that broadcast the cache over the heads."""
    q, q_rope, cache, rope = q.transpose(1, 2), q_rope.transpose(1, 2), cache[:, None], rope[:, None]
    weights = ((q @ cache.mT + q_rope @ rope.mT) * SCALE).softmax(-1)
    return weights @ cache


def heads_as_rows(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor) -> Tensor:
    """One product of three dimensions, each head's query a row."""
    query, key = torch.cat([q, q_rope], -1).squeeze(1), torch.cat([cache, rope], -1)
    return torch.bmm(torch.bmm(query * SCALE, key.transpose(1, 2)).softmax(-1), cache)


def repeated_heads(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor) -> Tensor:
    """Batch and heads in one axis, with the cache repeated."""
    query = torch.cat([q, q_rope], -1).reshape(-1, 1, LATENT + ROPE)
    key = torch.cat([cache, rope], -1).repeat_interleave(HEADS, dim=0)
    value = cache.repeat_interleave(HEADS, dim=0)
    return torch.bmm((torch.bmm(query, key.mT) * SCALE).softmax(-1), value).view(-1, HEADS, LATENT)


FORMS: dict[str, Function] = {
    "einsums": einsums,
    "operator": operator,
    "products": products,
    "heads as rows": heads_as_rows,
    "repeated heads": repeated_heads,
    "rope first": lambda q, q_rope, cache, rope: (
        ((q_rope @ rope[:, None].mT + q @ cache[:, None].mT) * SCALE).softmax(-1) @ cache[:, None]
    ),
    "each scaled": lambda q, q_rope, cache, rope: (
        ((q * SCALE) @ cache[:, None].mT + (q_rope @ rope[:, None].mT) / (1 / SCALE)).softmax(-1) @ cache[:, None]
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_forms(function: Function) -> None:
    """However it is written, it is one call that reads both parts where they are."""
    assert only_call(function, *APART) == parameters()


def test_parts_of_one_tensor_are_read_from_it() -> None:
    """Columns cut out of joined queries and of a joined cache are not copied."""

    def function(query: Tensor, cache: Tensor) -> Tensor:
        return einsums(*query.split([LATENT, ROPE], -1), cache[..., :LATENT], cache[..., LATENT:])

    assert only_call(function, *JOINED) == parameters(joined_queries=True, joined_cache=True)


def test_a_joined_cache_in_one_product() -> None:
    """Values that are the first columns of the keys, as serving systems keep them."""

    def function(q: Tensor, q_rope: Tensor, cache: Tensor) -> Tensor:
        query = torch.cat([q, q_rope], -1).transpose(1, 2)
        key, value = cache[:, None], cache[:, None, :, :LATENT]
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE, enable_gqa=True)

    assert only_call(function, *APART[:2], JOINED[1]) == parameters(joined_cache=True)


def test_sixteen_bits_with_softmax_in_float32() -> None:
    """The casts around softmax are the kernel's own precision."""
    inputs = (x.to(torch.float16) for x in APART)
    assert only_call(einsums, *inputs, rtol=4e-3) == parameters(dtype="float16")


SHOWN = normal(BATCH, 1, 1, KEYS, seed=4) > -0.5
MASKS: dict[str, tuple[Function, Tensor, dict[str, Any]]] = {
    "of a static cache": (operator, SHOWN, {"mask": "bool", "mask_per_batch": True}),
    "of a static cache, heads as rows": (
        lambda *inputs: einsums(*inputs[:4], lambda s: s.masked_fill(~inputs[4], -torch.inf)),
        SHOWN,
        {"mask": "bool", "mask_per_batch": True},
    ),
    "added": (
        lambda *inputs: einsums(*inputs[:4], lambda s: s + inputs[4]),
        normal(BATCH, 1, 1, KEYS, seed=5),
        {"mask": "additive", "mask_per_batch": True},
    ),
    "of each head": (
        lambda *inputs: einsums(*inputs[:4], lambda s: s + inputs[4]),
        normal(1, 1, HEADS, KEYS, seed=5),
        {"mask": "additive", "mask_per_head": True},
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "mask", "expected"), MASKS.values(), ids=MASKS)
def test_masks(function: Function, mask: Tensor, expected: dict[str, Any]) -> None:
    """A static cache's mask is passed on as the model has it, beside the sum of two products too."""
    inputs = (*APART, mask)
    module = imported(function, *inputs, symbolic=())
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert (call.kernel, call.parameters) == ("attention.latent_decode", parameters(**expected))


def scored(query: Tensor, key: Tensor, value: Tensor, rope_factor: float = 1.0) -> Tensor:
    """Attention of the queries' first axis of heads, ``value`` of any origin."""
    weights = query[..., :LATENT] @ key[..., :LATENT].mT + rope_factor * (query[..., LATENT:] @ key[..., LATENT:].mT)
    return weights.softmax(-1) @ value


NEAR_MISSES: dict[str, Function] = {
    "values are the last columns": lambda q, c: (q @ c[:, None].mT).softmax(-1) @ c[:, None, :, ROPE:],
    "values are scaled": lambda q, c: (q @ c[:, None].mT).softmax(-1) @ (c[:, None, :, :LATENT] * 2),
    "values are of other keys": lambda q, c: (q @ c[:, None].mT).softmax(-1) @ c.flip(1)[:, None, :, :LATENT],
    "values are all of the keys": lambda q, c: (q @ c[:, None].mT).softmax(-1) @ c[:, None],
    "parts weigh differently": lambda q, c: scored(q, c[:, None], c[:, None, :, :LATENT], 0.5),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_ordinary_attention(function: Function) -> None:
    """What shares its cache otherwise is computed right, by the kernel for separate values."""
    module = symbolic(function, *JOINED)
    calls = checked_substitutions(module, *JOINED, rules=RULES)
    assert [call.kernel for call in calls] != ["attention.latent_decode"]
    assert len(calls) == 1


def test_scores_that_are_returned_too() -> None:
    """A kernel would not give one of the summands, so that it would be computed a second time."""

    def function(q: Tensor, q_rope: Tensor, cache: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        scores = q_rope @ rope[:, None].mT
        return ((q @ cache[:, None].mT + scores) * SCALE).softmax(-1) @ cache[:, None], scores

    module = symbolic(function, *APART)
    assert "attention.latent_decode" not in [call.kernel for call in checked_substitutions(module, *APART, rules=RULES)]


def test_several_queries_are_no_decoding() -> None:
    """Each sees other keys."""
    inputs = (normal(BATCH, 3, HEADS, LATENT), normal(BATCH, 3, HEADS, ROPE), CACHE, ROPE_CACHE)
    module = symbolic(lambda *x: operator(*x), *inputs)
    assert [call.kernel for call in checked_substitutions(module, *inputs, rules=RULES)] == ["attention.prefill"]


class AbsorbedAttention(nn.Module):
    """One decoding step of multi-head latent attention, with the keys' up-projection absorbed into the queries.

    (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2.)
    """

    def __init__(self, hidden: int = 64, head_size: int = 16, latent: int = 64, dtype: torch.dtype = torch.float32):
        super().__init__()
        options: dict[str, Any] = {"bias": False, "dtype": dtype}
        self.sizes = head_size, latent
        self.query = nn.Linear(hidden, HEADS * (head_size + ROPE), **options)
        self.compress = nn.Linear(hidden, latent + ROPE, **options)
        self.expand = nn.Linear(latent, HEADS * 2 * head_size, **options)
        self.out = nn.Linear(HEADS * head_size, hidden, **options)

    def forward(self, x: Tensor, cache: Tensor, rope_cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``x [batch, 1, hidden]`` against the cache; the output, and the cache with the new token."""
        head_size, latent = self.sizes
        query, q_rope = self.query(x).unflatten(-1, (HEADS, -1)).split([head_size, ROPE], -1)
        new, rope = self.compress(x).split([latent, ROPE], -1)
        cache, rope_cache = torch.cat([cache, new], 1), torch.cat([rope_cache, rope], 1)
        keys, values = self.expand.weight.view(HEADS, 2 * head_size, latent).split(head_size, 1)
        attended = einsums(torch.einsum("bshd,hdc->bshc", query, keys), q_rope, cache, rope_cache)
        return self.out(torch.einsum("bshc,hdc->bshd", attended, values).flatten(2)), cache, rope_cache


LAYER_SHAPES = {"x": {0: BATCHES}, "cache": {0: BATCHES, 1: TOKENS}, "rope_cache": {0: BATCHES, 1: TOKENS}}


def layer_inputs(batch: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """A token for each sequence, and what is cached of those before it."""
    shapes = ((batch, 1, 64), (batch, keys, 64), (batch, keys, ROPE))
    return tuple(normal(*shape, seed=seed).to(dtype) for seed, shape in enumerate(shapes))


@pytest.mark.daily(1)
def test_a_compiled_layer_agrees() -> None:
    """Through the whole compiler, at several batches and lengths of the cache."""
    torch.manual_seed(0)
    model = AbsorbedAttention().eval()
    executable = tkc.compile(model, layer_inputs(2, 7), dynamic_shapes=LAYER_SHAPES, kernels="all")
    assert "attention.latent_decode" in {use.kernel for use in executable.report.uses}
    for batch, keys in ((2, 7), (3, 64), (5, 130)):
        inputs = layer_inputs(batch, keys)
        with torch.no_grad():
            expected = model(*inputs)
        for found, wanted in zip(executable(*inputs), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_layer_for_hopper_calls_the_kernel() -> None:
    """In bfloat16, with the sizes that its tiles ask for."""
    model, inputs = AbsorbedAttention(dtype=torch.bfloat16).eval(), layer_inputs(2, 7, torch.bfloat16)
    report = tkc.explain(model, inputs, dynamic_shapes=LAYER_SHAPES, target="cuda:sm_90a")
    assert "attention.latent_decode" in {use.kernel for use in report.uses}
