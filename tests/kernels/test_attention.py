"""Attention kernels against PyTorch: layouts, masks, head sizes, odd lengths; built for CUDA without a GPU too."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.attention_checks import CPU, DECODE, HOPPER, PREFILL, check, parameters, random_inputs, request
from tkc.builder import KernelBuilder
from tkc.kernels import Target

PREFILL_SIZES = [
    {"batch": 2, "queries": 1, "keys": 1},
    {"batch": 1, "queries": 17, "keys": 17},
    {"batch": 2, "queries": 127, "keys": 128},
    {"batch": 1, "queries": 130, "keys": 3},
    {"batch": 1, "queries": 2, "keys": 300},
]
DECODE_SIZES = [{"batch": 2, "keys": keys} for keys in (1, 17, 128, 1023)]

CPU_PREFILL = {
    "multi-head, top left": parameters((2, 2), causal="top_left"),
    "grouped, bottom right, head first": parameters(
        (6, 2), (80, 80), causal="bottom_right", q_layout="bhsd", v_layout="bhsd"
    ),
    "padding, causal": parameters(
        (4, 2), (16, 32), causal="bottom_right", mask="bool", mask_per_batch=True, mask_per_query=False
    ),
    "additive padding of the head, capped": parameters(
        (2, 2), (32, 32), softcap=2.0, mask="additive", mask_per_head=True, mask_per_query=False
    ),
    "multi-query of MLA's sizes, one boolean mask": parameters((4, 1), (192, 128), mask="bool"),
    "boolean mask of batch and head, bottom right": parameters(
        (4, 2), (16, 16), causal="bottom_right", mask="bool", mask_per_batch=True, mask_per_head=True
    ),
    "additive mask of the head, output and keys head first": parameters(
        (4, 2), (24, 40), mask="additive", mask_per_head=True, k_layout="bhsd", out_layout="bhsd"
    ),
    "window on both sides, capped, additive mask of the batch": parameters(
        (2, 1), (32, 32), dtype="bfloat16", window=70, softcap=2.0, mask="additive", mask_per_batch=True
    ),
    "float16": parameters((2, 2), (32, 32), dtype="float16"),
    "window at the bottom right, capped, sinks": parameters(
        (4, 2), (16, 16), dtype="bfloat16", causal="bottom_right", window=20, softcap=1.5, sinks=True
    ),
}
CPU_DECODE = {
    "multi-head": parameters((2, 2)),
    "grouped, boolean mask of the batch, head first": parameters(
        (6, 2), (80, 80), mask="bool", mask_per_batch=True, q_layout="bhsd", k_layout="bhsd"
    ),
    "multi-query, additive mask of the head, bfloat16": parameters(
        (7, 1), (192, 128), dtype="bfloat16", mask="additive", mask_per_head=True
    ),
    "bottom right": parameters((4, 1), causal="bottom_right", v_layout="bhsd"),
    "top left": parameters((4, 1), causal="top_left", out_layout="bhsd"),
    "capped, sinks, boolean mask": parameters((6, 2), (16, 16), softcap=1.5, sinks=True, mask="bool"),
}


@pytest.mark.parametrize("kind", CPU_PREFILL)
@pytest.mark.daily(2)
def test_prefill_on_the_cpu(builder: KernelBuilder, kind: str) -> None:
    """One kernel serves every length, those beside its tile sizes included."""
    for sizes in PREFILL_SIZES:
        check(builder, request(PREFILL, CPU_PREFILL[kind], CPU), sizes)


@pytest.mark.parametrize("kind", CPU_DECODE)
@pytest.mark.daily(2)
def test_decode_on_the_cpu(builder: KernelBuilder, kind: str) -> None:
    """As prefill, for one query."""
    for sizes in DECODE_SIZES:
        check(builder, request(DECODE, CPU_DECODE[kind], CPU), sizes)


@pytest.mark.daily(1)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.integers(1, 3), queries=st.integers(1, 100), keys=st.integers(1, 150))
def test_any_lengths(builder: KernelBuilder, batch: int, queries: int, keys: int) -> None:
    """Causal attention at the bottom right, whose diagonal moves with both lengths."""
    kind = CPU_PREFILL["grouped, bottom right, head first"]
    check(builder, request(PREFILL, kind, CPU), {"batch": batch, "queries": queries, "keys": keys})


@pytest.mark.daily(1)
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_capped_scores_keep_their_digits(builder: KernelBuilder, spread: float) -> None:
    """A wide cap bends scores little: what float32 loses is what PyTorch loses, for small scores and large ones."""
    p = parameters((2, 2), (32, 32), softcap=50.0)
    wanted = request(PREFILL, p, CPU)
    generator = torch.Generator().manual_seed(26)
    q, k, v = (torch.randn(1, 200, 2, 32, generator=generator) for _ in range(3))
    q *= spread
    out = torch.empty(1, 200, 2, 32)
    tvm_ffi.load_module(str(builder.build([wanted])[wanted].path))[wanted.symbol](q, k, v, out)
    scores = 50.0 * torch.tanh(torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * p.scale / 50.0)
    exact = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())
    (float32,) = PREFILL.reference(p, q, k, v)
    assert (out - exact).abs().max() <= 2 * (float32 - exact).abs().max()


def test_a_row_that_sees_nothing_is_zero(builder: KernelBuilder) -> None:
    """Of three queries before one key, only the last sees it."""
    wanted = request(PREFILL, CPU_PREFILL["grouped, bottom right, head first"], CPU)
    library = builder.build([wanted])[wanted]
    q, k, v = random_inputs(wanted, {"batch": 1, "queries": 3, "keys": 1}, "cpu")
    out = torch.full((1, 3, 6, 80), torch.nan)
    tvm_ffi.load_module(str(library.path))[wanted.symbol](q, k, v, out)
    assert (out[:, :2] == 0).all()
    torch.testing.assert_close(out[:, 2], v[:, :, 0].repeat_interleave(3, dim=1))


def test_the_reference_is_pytorch_attention() -> None:
    """The reference agrees with ``scaled_dot_product_attention``, which knows grouped heads and masks."""
    p = parameters((6, 2), (32, 16), mask="additive", mask_per_batch=True, out_layout="bhsd")
    q, k, v = torch.randn(2, 9, 6, 32), torch.randn(2, 11, 2, 32), torch.randn(2, 11, 2, 16)
    mask = torch.randn(2, 1, 9, 11)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(PREFILL.reference(p, q, k, v, mask)[0], expected)


def test_the_reference_caps_scores_and_has_sinks() -> None:
    """As Gemma 2 and GPT-OSS in transformers: the cap before the mask, the sink as one more key, then dropped."""
    p = parameters((2, 2), (8, 8), causal="top_left", window=3, softcap=1.5, sinks=True)
    q, k, v, sinks = *(torch.randn(1, 9, 2, 8) for _ in range(3)), torch.randn(2)
    scores = torch.tanh(torch.einsum("bqhd,bkhd->bhqk", q, k) * p.scale / 1.5) * 1.5
    distance = torch.arange(9)[:, None] - torch.arange(9)
    scores = scores.masked_fill((distance < 0) | (distance > 3), -torch.inf)
    joined = torch.cat([scores, sinks.reshape(1, 2, 1, 1).expand(1, 2, 9, 1)], dim=-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", joined.softmax(-1)[..., :-1], v)
    torch.testing.assert_close(PREFILL.reference(p, q, k, v, sinks)[0], expected)


@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    causal=st.sampled_from([None, "top_left", "bottom_right"]),
    window=st.none() | st.integers(0, 50),
)
def test_work_counts_what_is_seen(queries: int, keys: int, causal: str | None, window: int | None) -> None:
    """Two multiply-adds of a head's size for every score that neither the causal mask nor the window hides."""
    p = parameters((1, 1), (16, 32), causal=causal, window=window)
    first = keys - queries if causal == "bottom_right" else 0
    distance = torch.arange(first, first + queries)[:, None] - torch.arange(keys)
    after, before = 0 if causal else window, window
    seen = (distance <= (100 if before is None else before)) & (-distance <= (100 if after is None else after))
    visible = seen.sum().item()
    work = PREFILL.work(p, {"batch": 1, "queries": queries, "keys": keys})
    assert work.flops == 2 * visible * (16 + 32)
    assert work.bytes == 4 * (queries * (16 + 32) + keys * (16 + 32))


@pytest.mark.parametrize(
    ("change", "target", "reason"),
    [
        ({"num_heads": 5}, CPU, "5 query heads"),
        ({"scale": 0.0}, CPU, "scale"),
        ({"softcap": -1.0}, CPU, "capped"),
        ({"window": -1}, CPU, "window"),
        ({}, HOPPER, "float32"),
        ({"dtype": "float16", "head_size": 72}, HOPPER, "72"),
        ({"dtype": "float16", "value_head_size": 512}, HOPPER, "512"),
    ],
)
def test_refusals_name_the_cause(change: dict[str, object], target: Target, reason: str) -> None:
    """What no kernel serves is refused in words that say which parameter is in the way."""
    refusal = PREFILL.unsupported(dataclasses.replace(parameters(), **change), target)
    assert refusal is not None and reason in refusal


@given(
    size=st.integers(1, 16).map(lambda n: 16 * n),
    value_size=st.integers(1, 16).map(lambda n: 16 * n),
    arch=st.sampled_from(["sm_80", "sm_89", "sm_90a", "sm_120"]),
    kv_heads=st.sampled_from([1, 4, 128]),
)
def test_every_supported_kernel_has_a_configuration(size: int, value_size: int, arch: str, kv_heads: int) -> None:
    """However large the heads, some tiling fits every GPU."""
    p = parameters((128, kv_heads), (size, value_size), dtype="bfloat16")
    target = Target("cuda", arch)
    for spec in (PREFILL, DECODE):
        assert spec.unsupported(p, target) is None
        assert spec.configurations(p, target)
