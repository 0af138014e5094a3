"""Attention is found in every form that models write it in, with what its masks mean, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from tvm.ir import IRModule
from tvm.script import ir as I
from tvm.script import relax as R

from tests.passes.reference_execution import checked_substitutions, evaluated, imported, refusal_reasons, substituted
from tkc.frontend.torch.importer import import_torch
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.attention import DECODE, PREFILL

RULES = (DECODE, PREFILL)
BATCH, HEADS, TOKENS, SIZE = 2, 4, 7, 16
DIMS = {"batch": Dim("batch", min=2, max=64), "tokens": Dim("tokens", min=2, max=512), "past": Dim("past", max=512)}
INFINITY = float("inf")

Function = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(count: int = HEADS, tokens: int = TOKENS, size: int = SIZE, seed: int = 0) -> Tensor:
    """``[batch, heads, tokens, size]``."""
    return normal(BATCH, count, tokens, size, seed=seed)


def parameters(**changes: Any) -> AttentionParameters:
    """Four heads of 16 in float32, all laid out ``bhsd``, but for ``changes``."""
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout", "out_layout"), "bhsd")
    fixed = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_size": SIZE, "value_head_size": SIZE, "dtype": "float32"}
    return AttentionParameters(**(fixed | {"scale": 1 / math.sqrt(SIZE)} | layouts | changes))


def symbolic(function: Function, *examples: Tensor, sizes: tuple[dict[int, str], ...] = ()) -> IRModule:
    """``function`` as a module over symbolic batch and tokens (axes 0 and 2, unless ``sizes`` says otherwise)."""

    class Model(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return function(*inputs)

    names = sizes or ({0: "batch", 2: "tokens"},) * len(examples)
    axes = tuple({axis: DIMS[name] for axis, name in axes.items()} for axes in names)
    return Canonicalize()(import_torch(Model(), examples, dynamic_shapes={"inputs": axes}).module)


def only_call(module: IRModule, *inputs: Tensor) -> AttentionParameters:
    """The parameters of the one attention kernel that replaces everything between ``inputs`` and the result."""
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert (call.count, call.kernel) == (1, "attention.prefill")
    rewritten, _ = substituted(module, RULES)
    assert "softmax" not in rewritten["main"].script() and "R.matmul" not in rewritten["main"].script()
    return call.parameters


def lower_triangle(x: Tensor) -> Tensor:
    """True where a query sees a key, each token those before it and itself."""
    return torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()


def eager(q: Tensor, k: Tensor, v: Tensor, change: Function = lambda scores: scores) -> Tensor:
    """Attention by its formula, with ``change`` applied to the scaled scores."""
    return torch.softmax(change(q @ k.transpose(-1, -2) / math.sqrt(SIZE)), dim=-1) @ v


def by_three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with the heads folded into the batch."""
    batch, count, _, size = q.shape
    q, k, v = (x.reshape(batch * count, -1, size) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(SIZE)).softmax(-1)
    return torch.bmm(weights, v).view(batch, count, -1, size)


FORMS: dict[str, Function] = {
    "one operator": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "products": eager,
    "scale by multiplication": lambda q, k, v: (q @ k.mT * 0.25).softmax(-1) @ v,
    "scale on the left": lambda q, k, v: (0.25 * (q @ k.mT)).softmax(-1) @ v,
    "scale before": lambda q, k, v: ((q * 0.25) @ k.mT).softmax(-1) @ v,
    "scale of the keys": lambda q, k, v: (q @ (k / 4).mT).softmax(-1) @ v,
    "scale of both": lambda q, k, v: ((q * 0.5) @ (k.mT * 0.5)).softmax(-1) @ v,
    "softmax in another precision": lambda q, k, v: F.softmax(q @ k.mT / 4, -1, dtype=torch.float64).to(q.dtype) @ v,
    "three dimensions": by_three_dimensions,
    "keys times queries": lambda q, k, v: (k @ q.mT / 4).mT.softmax(-1) @ v,
    "dropout of nothing": lambda q, k, v: F.dropout((q @ k.mT / 4).softmax(-1), 0.0, training=False) @ v,
}


@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_forms(function: Function) -> None:
    """However it is written, it is one kernel call, for every batch and length."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    assert only_call(symbolic(function, q, k, v), q, k, v) == parameters()


LAYOUTS: dict[str, tuple[Function, dict[str, str]]] = {
    "operands": (
        lambda q, k, v: F.scaled_dot_product_attention(q.mT.mT.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)),
        {"q_layout": "bshd", "k_layout": "bshd", "v_layout": "bshd"},
    ),
    "result": (
        lambda q, k, v: eager(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2),
        dict.fromkeys(("q_layout", "k_layout", "v_layout", "out_layout"), "bshd"),
    ),
    "one operand": (lambda q, k, v: eager(q.transpose(1, 2), k.mT.mT.transpose(1, 2), v.transpose(1, 2)), {
        "q_layout": "bshd", "k_layout": "bshd", "v_layout": "bshd",
    }),
}  # fmt: skip


@pytest.mark.parametrize(("function", "layouts"), LAYOUTS.values(), ids=LAYOUTS)
def test_transpositions_become_layouts(function: Function, layouts: dict[str, str]) -> None:
    """The kernel reads and writes the model's own order of heads and tokens."""
    tokens_first = tuple(heads(seed=seed).transpose(1, 2).contiguous() for seed in range(3))
    sizes = ({0: "batch", 1: "tokens"},) * 3
    assert only_call(symbolic(function, *tokens_first, sizes=sizes), *tokens_first) == parameters(**layouts)


REPETITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "expand": lambda x: x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(x.shape[0], HEADS, -1, SIZE),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "index": lambda x: x[:, torch.arange(HEADS) // 2],
    "stack": lambda x: x.unsqueeze(2).repeat(1, 1, 2, 1, 1).flatten(1, 2),
}


@pytest.mark.parametrize("repeated", REPETITIONS.values(), ids=REPETITIONS)
def test_repeated_heads_are_shared(repeated: Callable[[Tensor], Tensor]) -> None:
    """Key/value heads that the model repeats are read once."""
    q, k, v = heads(), heads(2, seed=1), heads(2, seed=2)
    module = symbolic(lambda q, k, v: eager(q, repeated(k), repeated(v)), q, k, v)
    assert only_call(module, q, k, v) == parameters(num_kv_heads=2)


def test_one_head_for_all_by_broadcasting() -> None:
    """Multi-query attention needs no repetition in PyTorch."""
    q, k, v = heads(), heads(1, seed=1), heads(1, seed=2)
    assert only_call(symbolic(eager, q, k, v), q, k, v) == parameters(num_kv_heads=1)
    module, report = substituted(symbolic(F.scaled_dot_product_attention, q, k, v), RULES)
    assert [call.parameters for call in report.substitutions] == [parameters(num_kv_heads=1)]
    # Beside PyTorch, since TVM's lowering of the operator reads heads of keys that there are not.
    torch.testing.assert_close(evaluated(module, q, k, v), [F.scaled_dot_product_attention(q, k, v)])


def test_heads_that_the_operator_shares() -> None:
    """PyTorch's operator itself has fewer heads of keys and values than of queries, if it is told so."""
    q, k, v = heads(), heads(2, seed=1), heads(2, seed=2)
    module = symbolic(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, v)
    assert only_call(module, q, k, v) == parameters(num_kv_heads=2)


def test_heads_in_another_order_stay_repeated() -> None:
    """Tiling pairs query heads with other key/value heads than the kernel would."""
    q, k, v = heads(), heads(2, seed=1), heads(2, seed=2)
    module = symbolic(lambda q, k, v: eager(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), q, k, v)
    assert only_call(module, q, k, v) == parameters()


def test_latent_attention() -> None:
    """Keys of two parts, one of them shared by all heads, and values of another size (DeepSeek-V3)."""
    query, own, shared, v = heads(size=24), heads(seed=1), heads(1, size=8, seed=2), heads(seed=3)

    def function(query: Tensor, own: Tensor, shared: Tensor, v: Tensor) -> Tensor:
        key = torch.cat([own, shared.expand(-1, HEADS, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, v, scale=0.3)

    module = symbolic(function, query, own, shared, v)
    assert only_call(module, query, own, shared, v) == parameters(head_size=24, value_head_size=SIZE, scale=0.3)


MASKS: dict[str, tuple[Function, dict[str, Any]]] = {
    "is_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {"causal": "top_left"}),
    "boolean triangle": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, lower_triangle(q)), {"causal": "top_left"}
    ),
    "selected triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: s.masked_fill(~lower_triangle(q), -INFINITY)), {"causal": "top_left"}
    ),
    "kept triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: torch.where(lower_triangle(q), s, -1e9)), {"causal": "top_left"}
    ),
    "added triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: s + torch.full((q.shape[2], k.shape[2]), -INFINITY).triu(1)),
        {"causal": "top_left"},
    ),
    "added least number": (
        lambda q, k, v: eager(q, k, v, lambda s: (~lower_triangle(q)) * torch.finfo(s.dtype).min + s),
        {"causal": "top_left"},
    ),
    "subtracted": (
        lambda q, k, v: eager(q, k, v, lambda s: s - (1 - lower_triangle(q).float()) * 1e9), {"causal": "top_left"}
    ),
    "all ones": (
        lambda q, k, v: eager(q, k, v, lambda s: s + (1 - torch.ones(q.shape[0], 1, 1, k.shape[2])) * -10000.0), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "mask"), MASKS.values(), ids=MASKS)
def test_masks_by_position(function: Function, mask: dict[str, Any]) -> None:
    """A mask that only positions decide becomes a flag, or nothing where it hides nothing."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    assert only_call(symbolic(function, q, k, v), q, k, v) == parameters(**mask)


def test_causal_against_a_cache() -> None:
    """Queries that follow cached keys see them all: aligned at the bottom right."""

    def function(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
        position = torch.arange(q.shape[2])[:, None] + past.shape[2]
        return eager(q, k, v, lambda s: s.masked_fill(torch.arange(k.shape[2])[None] > position, -INFINITY))

    inputs = (*(heads(seed=seed) for seed in range(3)), heads(tokens=5, seed=4))
    sizes = (*({0: "batch", 2: "tokens"},) * 3, {0: "batch", 2: "past"})
    assert only_call(symbolic(function, *inputs, sizes=sizes), *inputs) == parameters(causal="bottom_right")


@pytest.mark.parametrize(("fill", "expected"), [(-INFINITY, {"causal": "bottom_right"}), (-1e9, {"mask": "additive"})])
def test_more_queries_than_keys_may_see_nothing(fill: float, expected: dict[str, Any]) -> None:
    """With a finite fill such a query averages over all keys, where the kernel's causal mask makes it zero."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        position = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
        return eager(q, k, v, lambda s: s.masked_fill(torch.arange(k.shape[2])[None] > position, fill))

    inputs = heads(), heads(tokens=5, seed=1), heads(tokens=5, seed=2)
    sizes = ({0: "batch", 2: "tokens"}, *({0: "batch", 2: "past"},) * 2)
    (call,) = substituted(symbolic(function, *inputs, sizes=sizes), RULES)[1].substitutions
    assert call.parameters == parameters(**expected)


def keep_first(*shape: int) -> Tensor:
    """A boolean mask that keeps the first key and some others."""
    mask = normal(*shape, seed=9) > 0
    mask[..., 0] = True
    return mask


def padding(mask: Tensor) -> Tensor:
    """What BERT adds to scores for a padding mask ``[batch, keys]``."""
    return (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min


TENSORS: dict[str, tuple[Function, Tensor, dict[str, Any]]] = {
    "boolean": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        keep_first(BATCH, 1, TOKENS, TOKENS),
        {"mask": "bool", "mask_per_batch": True},
    ),
    "boolean of two dimensions": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), keep_first(TOKENS, TOKENS), {"mask": "bool"},
    ),
    "selected": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -INFINITY)),
        keep_first(BATCH, HEADS, TOKENS, TOKENS),
        {"mask": "bool", "mask_per_batch": True, "mask_per_head": True},
    ),
    "selected with a finite fill": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9)),
        keep_first(BATCH, 1, 1, TOKENS),
        {"mask": "additive", "mask_per_batch": True},
    ),
    "added": (
        lambda q, k, v, m: eager(q, k, v, lambda s: m + s),
        normal(1, HEADS, TOKENS, TOKENS, seed=8),
        {"mask": "additive", "mask_per_head": True},
    ),
    "added before the scale": (
        lambda q, k, v, m: ((q @ k.mT + m) * 0.25).softmax(-1) @ v,
        normal(1, HEADS, TOKENS, TOKENS, seed=8),
        {"mask": "additive", "mask_per_head": True},
    ),
    "padding": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s + padding(m)),
        keep_first(BATCH, TOKENS).long(),
        {"mask": "additive", "mask_per_batch": True},
    ),
    "padding and causal": (
        lambda q, k, v, m: eager(q, k, v, lambda s: (s + padding(m)).masked_fill(~lower_triangle(q), -INFINITY)),
        keep_first(BATCH, TOKENS).long(),
        {"mask": "additive", "mask_per_batch": True, "causal": "top_left"},
    ),
    "two masks": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -INFINITY) + m.float()),
        keep_first(BATCH, 1, 1, TOKENS),
        {"mask": "additive", "mask_per_batch": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "mask", "expected"), TENSORS.values(), ids=TENSORS)
def test_masks_by_data(function: Function, mask: Tensor, expected: dict[str, Any]) -> None:
    """Every other mask is passed on, broadcast over queries and keys where the model left that to its addition."""
    inputs = (*(heads(seed=seed) for seed in range(3)), mask)
    module = imported(function, *inputs, symbolic=())
    assert only_call(module, *inputs) == parameters(**expected)


HIDDEN: dict[str, Function] = {
    "filled": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9)),
    "filled with less": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e4)),
    "filled after a sum": lambda q, k, v, m: eager(q, k, v, lambda s: (s + k[:, :, None, :, 0]).masked_fill(~m, -1e9)),
    "filled twice": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9).masked_fill(~m.roll(1), -1e9)),
}


@pytest.mark.parametrize("function", HIDDEN.values(), ids=HIDDEN)
def test_a_query_that_sees_nothing_averages_whatever_its_scores(function: Function) -> None:
    """The fill takes the place of scores: their digits beyond it must not be left in the sum of both."""
    mask = keep_first(BATCH, 1, 1, TOKENS)
    mask[0] = False
    inputs = (heads() * 300, heads(seed=1), heads(seed=2), mask)
    assert only_call(imported(function, *inputs, symbolic=()), *inputs).mask == "additive"


def test_numbers_of_16_bits_that_hide_scores_are_no_mask() -> None:
    """Of float16 none is so large that a score is lost in the sum of both."""
    inputs = (*(heads(seed=seed).half() for seed in range(3)), keep_first(BATCH, 1, 1, TOKENS))
    module = imported(HIDDEN["filled with less"], *inputs, symbolic=())
    report = substituted(module, RULES)[1]
    assert not report.substitutions
    assert "none of float16 is so large as to" in str(report.refusals)


def distances(q: Tensor, k: Tensor) -> Tensor:
    """How far each key is before each query, the last of both at the same position."""
    return torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2]) - torch.arange(k.shape[2])


def near_data(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A mask ``[batch, 1, 1, keys]`` of data, beside a window: in one conjunction."""
    seen = (distances(q, k) >= 0) & (v[:, :1, :, 0] > -9)[:, :, None]
    return F.scaled_dot_product_attention(q, k, v, seen & (distances(q, k) < 3))


WINDOWS: dict[str, tuple[Function, dict[str, Any]]] = {
    "triangles": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, lower_triangle(q) & lower_triangle(q).triu(-2)),
        {"causal": "top_left", "window": 2},
    ),
    "negated": (
        lambda q, k, v: eager(
            q, k, v, lambda s: s.masked_fill((distances(q, k) < 0) | (distances(q, k) > 2), -INFINITY)
        ),
        {"causal": "top_left", "window": 2},
    ),
    "in two steps": (
        lambda q, k, v: eager(
            q, k, v,
            lambda s: s.masked_fill(~lower_triangle(q), -1e9) + torch.where(distances(q, k).abs() <= 2, 0, -1e9),
        ),
        {"causal": "top_left", "window": 2},
    ),
    "both sides": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, distances(q, k).abs() <= 2), {"window": 2}
    ),
    "both sides by products": (
        lambda q, k, v: eager(q, k, v, lambda s: s.masked_fill(distances(q, k).abs() > 1, -1e9)), {"window": 1}
    ),
    "beside data": (near_data, {"causal": "top_left", "window": 2, "mask": "bool", "mask_per_batch": True}),
}  # fmt: skip


@pytest.mark.parametrize(("function", "mask"), WINDOWS.values(), ids=WINDOWS)
def test_windows(function: Function, mask: dict[str, Any]) -> None:
    """Positions that bound what is seen on both sides become a window."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    assert only_call(symbolic(function, q, k, v), q, k, v) == parameters(**mask)


def test_a_window_against_a_cache() -> None:
    """Queries that follow cached keys have their window end at the bottom right."""

    def function(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
        position, key = torch.arange(q.shape[2])[:, None] + past.shape[2], torch.arange(k.shape[2])
        return eager(q, k, v, lambda s: s.masked_fill((key > position) | (key <= position - 4), -INFINITY))

    inputs = (*(heads(seed=seed) for seed in range(3)), heads(tokens=5, seed=4))
    sizes = (*({0: "batch", 2: "tokens"},) * 3, {0: "batch", 2: "past"})
    module = symbolic(function, *inputs, sizes=sizes)
    assert only_call(module, *inputs) == parameters(causal="bottom_right", window=3)


def chunks(distance: Tensor) -> Tensor:
    """Llama 4's: a query sees the keys before it in its own part of the sequence."""
    chunk = torch.arange(distance.shape[0]) // 4
    return (distance >= 0) & (chunk[:, None] == chunk)


NO_WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uneven": lambda distance: (distance <= 2) & (distance >= -1),
    "without the query's own": lambda distance: (distance <= 3) & (distance > 0),
    "with a hole": lambda distance: (distance >= 0) & (distance <= 3) & (distance != 1),
    "chunks": chunks,
}


@pytest.mark.parametrize("seen", NO_WINDOWS.values(), ids=NO_WINDOWS)
def test_other_positions_stay_a_mask(seen: Callable[[Tensor], Tensor]) -> None:
    """A mask of positions that is neither causal nor a window must not be taken for one."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    module = symbolic(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, seen(distances(q, k))), q, k, v)
    (call,) = substituted(module, RULES)[1].substitutions
    assert call.parameters == parameters(mask="bool")


def test_a_small_number_hides_nothing() -> None:
    """What is added to the scores of later keys makes them less likely; it does not leave them out."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    function = lambda q, k, v: eager(q, k, v, lambda s: s + torch.where(distances(q, k) < 0, -1.0, 0.0))  # noqa: E731
    (call,) = substituted(symbolic(function, q, k, v), RULES)[1].substitutions
    assert call.parameters == parameters(mask="additive")


def with_sink(scores: Tensor, sinks: Tensor) -> Tensor:
    """GPT-OSS's weights: the softmax over the keys and one more, which is dropped."""
    joined = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], dim=-1)
    return (joined - joined.max(dim=-1, keepdim=True).values).softmax(-1)[..., :-1]


CAP = 3.0
VARIANTS: dict[str, tuple[Function, dict[str, Any]]] = {
    "capped": (
        lambda q, k, v, s: eager(q, k, v, lambda scores: (scores / CAP).tanh() * CAP), {"softcap": CAP},
    ),
    "capped, then masked": (
        lambda q, k, v, s: eager(
            q, k, v, lambda scores: (CAP * (scores / CAP).tanh()).masked_fill(distances(q, k) < 0, -INFINITY)
        ),
        {"softcap": CAP, "causal": "top_left"},
    ),
    "sinks": (lambda q, k, v, s: with_sink(q @ k.mT / 4, s) @ v, {"sinks": True}),
    "capped, sinks": (lambda q, k, v, s: with_sink((q @ k.mT / 4 / CAP).tanh() * CAP, s) @ v, {
        "sinks": True, "softcap": CAP,
    }),
}  # fmt: skip


@pytest.mark.parametrize("queries", [1, TOKENS])
@pytest.mark.parametrize(("function", "expected"), VARIANTS.values(), ids=VARIANTS)
def test_variants(function: Function, expected: dict[str, Any], queries: int) -> None:
    """Caps and sinks go into the kernel, for many queries and for one."""
    inputs = (heads(tokens=queries), heads(seed=1), heads(seed=2), normal(HEADS, seed=3))
    if queries == 1 and "causal" in expected:
        pytest.skip("says nothing for one query")
    module = imported(function, *inputs, symbolic=())
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert call.kernel == ("attention.decode" if queries == 1 else "attention.prefill")
    assert call.parameters == replace(parameters(**expected), scale=call.parameters.scale)
    assert call.parameters.scale == pytest.approx(0.25)


def test_one_query_is_decoding() -> None:
    """A single query has a kernel of its own, and nothing of a causal mask is left."""
    q, k, v = heads(tokens=1), heads(seed=1), heads(seed=2)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        last = torch.arange(k.shape[2])[None] <= torch.arange(1)[:, None] + k.shape[2] - 1
        return F.scaled_dot_product_attention(q, k, v, last)

    module = symbolic(function, q, k, v, sizes=({0: "batch"}, *({0: "batch", 2: "tokens"},) * 2))
    (call,) = checked_substitutions(module, q, k, v, rules=RULES)
    assert (call.kernel, call.parameters) == ("attention.decode", parameters())


def test_sixteen_bits_with_softmax_in_float32() -> None:
    """The casts around softmax are the kernel's own precision."""
    q, k, v = (heads(seed=seed).to(torch.float16) for seed in range(3))
    module = symbolic(
        lambda q, k, v: F.softmax(q @ k.mT / 4, dim=-1, dtype=torch.float32).to(torch.float16) @ v, q, k, v
    )
    (call,) = checked_substitutions(module, q, k, v, rules=RULES, rtol=2e-3)
    assert call.parameters == parameters(dtype="float16")


def biased(bias: Callable[[Tensor], Tensor]) -> Function:
    """Scores and softmax in float32, with a bias."""
    return lambda q, k, v, b: torch.softmax((q @ k.mT).float() / 4 + bias(b), -1).to(q.dtype) @ v


def test_a_bias_is_not_rounded() -> None:
    """One of float32 beside 16-bit queries stays one; one that is float32 only for the sum is the kernel's."""
    q, k, v = (heads(seed=seed).to(torch.bfloat16) for seed in range(3))
    bias = normal(*(q @ k.mT).shape, seed=3) * 30
    (reason,) = refusal_reasons(imported(biased(lambda b: b), q, k, v, bias, symbolic=()), RULES)
    assert reason == "a float32 tensor is added to the scores, which the kernel would round to bfloat16"
    narrow = bias.to(torch.bfloat16)
    module = imported(biased(lambda b: b.float()), q, k, v, narrow, symbolic=())
    (call,) = checked_substitutions(module, q, k, v, narrow, rules=RULES, rtol=2e-2)
    assert call.parameters == parameters(dtype="bfloat16", mask="additive", mask_per_batch=True, mask_per_head=True)


@I.ir_module
class Decomposed:
    """Attention as PyTorch's own decomposition leaves it: rows that see nothing are cleared after softmax."""

    @R.function
    def main(  # noqa: D102
        q: R.Tensor((6, 5, 8), "float32"), k: R.Tensor((6, 5, 8), "float32"), v: R.Tensor((6, 5, 8), "float32"),
        mask: R.Tensor((2, 1, 5, 5), "bool"),
    ) -> R.Tensor((6, 5, 8), "float32"):  # fmt: skip
        with R.dataflow():
            product = R.matmul(q, R.permute_dims(k, [0, 2, 1]))
            bias = R.where(mask, R.const(0.0, "float32"), R.const(-INFINITY, "float32"))
            scores = R.add(R.reshape(product, (2, 3, 5, 5)), bias)
            weights = R.nn.softmax(scores, axis=-1)
            seen = R.astype(R.logical_not(R.equal(scores, R.const(-INFINITY, "float32"))), "int8")
            any_seen = R.astype(R.max(seen, axis=[-1], keepdims=True), "bool")
            cleared = R.where(R.logical_not(any_seen), R.const(0.0, "float32"), weights)
            out = R.matmul(R.reshape(cleared, (6, 5, 5)), v)
            R.output(out)
        return out


def test_cleared_rows() -> None:
    """The kernel clears the rows of queries that see nothing, so that the model's clearing goes, too."""
    q, k, v = (normal(6, 5, 8, seed=seed) for seed in range(3))
    mask = keep_first(BATCH, 1, 5, 5)
    mask[1, 0, 2] = False
    (call,) = checked_substitutions(Decomposed, q, k, v, mask, rules=RULES)
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout", "out_layout"), "bhsd")
    assert call.parameters == AttentionParameters(
        3, 3, 8, 8, "float32", 1.0, mask="bool", mask_per_batch=True, **layouts
    )
    assert "R.where" not in substituted(Decomposed, RULES)[0]["main"].script()


def square(function: Function) -> IRModule:
    """``function`` of queries, keys and values whose axes all have one size, so that shapes give nothing away."""
    return imported(function, *(normal(4, 4, 4, 4, seed=seed) for seed in range(3)), symbolic=())


NEAR_MISSES: dict[str, tuple[Function, str]] = {
    "softmax over the queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "softmax runs over the queries"),
    "softmax over the heads": (lambda q, k, v: (q @ k.mT).softmax(1) @ v, "softmax runs over another axis"),
    "scale of data": (lambda q, k, v: (q @ k.mT * q.mean()).softmax(-1) @ v, "multiplied by something"),
    "divisor of data": (lambda q, k, v: (q @ k.mT / q.sum(-1, True)).softmax(-1) @ v, "divided by something"),
    "mask multiplied": (lambda q, k, v: (q @ k.mT * lower_triangle(q)).softmax(-1) @ v, "multiplied by something"),
    "masked by zero": (
        lambda q, k, v: (q @ k.mT).masked_fill(lower_triangle(q), 0.0).softmax(-1) @ v, "filled with 0.0"
    ),
    "scores capped twice": (lambda q, k, v: (q @ k.mT).tanh().tanh().softmax(-1) @ v, "pass through tanh after"),
    "scores masked, then capped": (
        lambda q, k, v: (q @ k.mT).masked_fill(~lower_triangle(q), -1e9).tanh().softmax(-1) @ v,
        "pass through tanh after they were masked",
    ),
    "a bounded sigmoid": (lambda q, k, v: (q @ k.mT).sigmoid().softmax(-1) @ v, "pass through sigmoid"),
    "the first weights dropped": (
        lambda q, k, v: torch.cat([q.mean(-1, True), q @ k.mT], -1).softmax(-1)[..., 1:] @ v, "another axis",
    ),
    "weights transposed": (lambda q, k, v: (q @ k.mT).softmax(-1).mT @ v, "softmax runs over the queries"),
    "values by heads": (lambda q, k, v: (q @ k.mT).softmax(-1).transpose(0, 1) @ v, "axis each for the batch"),
    "rows cleared otherwise": (
        lambda q, k, v: torch.where((q > 0).all(-1, True), 0.0, (q @ k.mT).softmax(-1)) @ v, "zeros are selected",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "reason"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function: Function, reason: str) -> None:
    """What looks like attention but is not keeps its operators, and the report says why."""
    (found,) = refusal_reasons(square(function), RULES)
    assert reason in found


def test_weights_that_are_returned_too() -> None:
    """A kernel would not give the weights, so that they would be computed a second time."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    module = imported(lambda q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w), q, k, v, symbolic=())
    (reason,) = refusal_reasons(module, RULES)
    assert "is needed elsewhere too: by " in reason


def test_other_products_of_softmax_are_no_attention() -> None:
    """A mixture of experts by softmax weights has no queries and keys."""
    weights, experts = normal(3, 5), normal(5, 8)
    module = imported(lambda w, e: w.softmax(-1) @ e, weights, experts, symbolic=())
    assert refusal_reasons(module, RULES) == ["softmax is not taken of a matrix product"]


def test_products_without_softmax_are_not_mentioned() -> None:
    """An ordinary product is nothing for the report."""
    assert refusal_reasons(square(lambda q, k, v: (q @ k.mT) @ v), RULES) == []


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
