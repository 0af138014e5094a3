"""Attention is found in every form that models write it in, with what its masks mean, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from tvm.script import ir as I
from tvm.script import relax as R

from tests.passes.attention_forms import (
    BATCH,
    HEADS,
    INFINITY,
    RULES,
    SIZE,
    TOKENS,
    Function,
    distances,
    eager,
    heads,
    keep_first,
    normal,
    only_call,
    parameters,
    symbolic,
)
from tests.passes.reference_execution import checked_substitutions, evaluated, imported, refusal_reasons, substituted
from tkc.kernels.attention.parameters import AttentionParameters


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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.parametrize(("factor", "is_exact"), [(0.5, True), (0.3, False)])
def test_a_bias_that_is_reshaped_and_scaled(factor: float, is_exact: bool) -> None:
    """ALiBi's, of heads and keys: its product is the kernel's where no rounding of 16 bits changes it."""

    def function(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(((q @ k.mT).float() + b.float()) * factor, -1).to(q.dtype) @ v

    q, k, v = (heads(seed=seed).to(torch.bfloat16) for seed in range(3))
    wide = normal(HEADS, 1, TOKENS, seed=3)
    (reason,) = refusal_reasons(imported(function, q, k, v, wide, symbolic=()), RULES)
    assert "a float32 tensor is added to the scores" in reason
    narrow = wide.to(torch.bfloat16)
    module = imported(function, q, k, v, narrow, symbolic=())
    if is_exact:
        (call,) = checked_substitutions(module, q, k, v, narrow, rules=RULES, rtol=2e-2)
        expected = parameters(dtype="bfloat16", scale=factor, mask="additive", mask_per_head=True, mask_per_query=False)
        assert call.parameters == expected
    else:
        assert refusal_reasons(module, RULES) == [reason]


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
