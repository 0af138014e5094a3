"""Attention kernels against PyTorch: layouts, masks, head sizes, odd lengths; built for CUDA without a GPU too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import pytest
import torch
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target, TensorType
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.spec import (
    DECODE_RESIDENT,
    AttentionDecode,
    AttentionPrefill,
    decode_key_rows,
    resident_blocks,
)

PREFILL, DECODE = AttentionPrefill(), AttentionDecode()
CPU, HOPPER = Target.parse("cpu"), Target.parse("cuda:sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
GUARD = 1024  # elements before and after each tensor, which no kernel may use or change


def parameters(
    heads: tuple[int, int] = (4, 2), size: tuple[int, int] = (64, 64), **options: object
) -> AttentionParameters:
    """Parameters with the usual scale; ``heads`` are the queries' and the keys', ``size`` the keys' and the values'."""
    return AttentionParameters(*heads, *size, **({"dtype": "float32", "scale": size[0] ** -0.5} | options))


def request(
    spec: AttentionPrefill | AttentionDecode, p: AttentionParameters, target: Target, index: int = 0
) -> KernelRequest:
    """The kernel in the configuration of that index."""
    assert spec.unsupported(p, target) is None
    return KernelRequest(spec.name, p, spec.configurations(p, target)[index], target)


def guarded(tensor: TensorType, sizes: Mapping[str, int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor inside a larger one that is all NaN (all true for ``bool``), and the larger one."""
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
    count = torch.Size(shape).numel()
    fill = True if tensor.dtype == "bool" else torch.nan
    whole = torch.full((count + 2 * GUARD,), fill, dtype=getattr(torch, tensor.dtype), device=device)
    return whole[GUARD : GUARD + count].view(shape), whole


def random_inputs(request: KernelRequest, sizes: Mapping[str, int], device: str) -> list[torch.Tensor]:
    """Normal tensors, and a :func:`random_mask`."""
    generator = torch.Generator().manual_seed(sum(sizes.values()))
    tensors = []
    for declared in request.spec.inputs(request.parameters):
        tensor, _ = guarded(declared, sizes, device)
        if declared.name == "mask":
            tensor.copy_(random_mask(tensor, generator))
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        tensors.append(tensor)
    return tensors


def random_mask(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half the keys hidden; but one row of four sees nothing, and to one all keys are equal."""
    shown = torch.rand(like.shape, generator=generator) < 0.5
    row = torch.arange(like[..., 0].numel()).view(*like.shape[:-1], 1)
    if like.dtype == torch.bool:
        return (shown & (row % 4 != 1)) | (row % 4 == 2)
    mask = torch.randn(like.shape, generator=generator).masked_fill(~shown | (row % 4 == 1), -torch.inf)
    return mask.masked_fill(row % 4 == 2, torch.finfo(like.dtype).min)


def check(builder: KernelBuilder, request: KernelRequest, sizes: Mapping[str, int]) -> None:
    """Build the kernel, run it at these sizes, compare with its reference, and look for writes outside its tensors."""
    library = builder.build([request])[request]
    device = "cuda" if request.target.is_cuda else "cpu"
    spec, p = request.spec, request.parameters
    inputs = random_inputs(request, sizes, device)
    written = [guarded(t, sizes, device) for t in (*spec.outputs(p), *spec.workspaces(p, request.configuration))]
    tvm_ffi.load_module(str(library.path))[request.symbol](*inputs, *(tensor for tensor, _ in written))
    (expected,) = spec.reference(p, *inputs)
    tolerance = TOLERANCE[p.dtype]
    torch.testing.assert_close(written[0][0], expected, atol=tolerance, rtol=tolerance)
    for _, whole in written:
        assert whole[:GUARD].isnan().all() and whole[-GUARD:].isnan().all()


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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.integers(1, 3), queries=st.integers(1, 100), keys=st.integers(1, 150))
def test_any_lengths(builder: KernelBuilder, batch: int, queries: int, keys: int) -> None:
    """Causal attention at the bottom right, whose diagonal moves with both lengths."""
    kind = CPU_PREFILL["grouped, bottom right, head first"]
    check(builder, request(PREFILL, kind, CPU), {"batch": batch, "queries": queries, "keys": keys})


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


def test_hopper_prefill_uses_bulk_copies_and_warpgroup_products() -> None:
    """With symbolic lengths and a window, too, whose loops skip the tiles before it, of warps that load and others."""
    p = parameters((8, 2), (128, 128), dtype="bfloat16", causal="bottom_right", window=4095)
    source = cuda_source(request(PREFILL, p, HOPPER))
    assert len(set(re.findall(r"^ *(first_block\w*) = ", source, re.MULTILINE))) == 2  # of the producer, of consumers
    assert source.count("tl::tma_load(") >= 3
    assert "tl::wgmma_ss<" in source and "tl::wgmma_rs<" in source
    assert "tl::tma_store(" in source


CUDA_BUILDS = {
    "prefill, MLA's sizes": (PREFILL, parameters((4, 4), (192, 128), dtype="bfloat16", causal="top_left"), "sm_90a"),
    "prefill, masks": (PREFILL, parameters((4, 2), (80, 80), dtype="float16", mask="bool"), "sm_80"),
    "prefill, largest heads": (PREFILL, parameters((4, 2), (256, 256), dtype="float16"), "sm_120"),
    "decode": (DECODE, parameters((8, 2), (128, 128), dtype="bfloat16", mask="additive"), "sm_89"),
}


@pytest.mark.parametrize("size", [(64, 64), (128, 128), (80, 80), (96, 128), (256, 128)], ids=str)
def test_as_many_decoding_blocks_fit_a_hopper_multiprocessor_as_share_the_keys(size: tuple[int, int]) -> None:
    """Neither more than keys are split for, which is slower, nor fewer because of that."""
    multiprocessor, reserved, rest = 228 * 1024, 1024, 2048  # bytes; by the driver for each block; barriers, reductions
    p = parameters((32, 8), size, dtype="bfloat16")
    for c in DECODE.configurations(p, HOPPER):
        tiles = 2 * (16 * (size[0] + c.block_keys) + c.block_keys * sum(size))
        added = 2 * size[0] * (decode_key_rows(p, c, HOPPER) - c.block_keys)
        assert resident_blocks(p) == DECODE_RESIDENT and added >= 0
        assert multiprocessor // (tiles + added + reserved) <= DECODE_RESIDENT
        assert multiprocessor // (tiles + added + rest + reserved) >= DECODE_RESIDENT or not added


@pytest.mark.nvcc
@pytest.mark.parametrize("kind", CUDA_BUILDS)
@pytest.mark.daily(2)
def test_cuda_kernels_build_without_a_gpu(builder: KernelBuilder, kind: str) -> None:
    """Each architecture has a kernel in machine code."""
    spec, p, arch = CUDA_BUILDS[kind]
    wanted = request(spec, p, Target("cuda", arch))
    assert builder.build([wanted])[wanted].path.stat().st_size > 0


def half(**options: object) -> AttentionParameters:
    """Parameters for the tensor cores."""
    return parameters(**({"dtype": "bfloat16", "size": (128, 128)} | options))


HEAD_SIZES = [(16, 16), (32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)]
MASKS = {
    "bool per batch, causal": {"mask": "bool", "mask_per_batch": True, "causal": "top_left"},
    "additive per head": {"mask": "additive", "mask_per_head": True, "dtype": "float16"},
    "additive per batch, causal": {"mask": "additive", "mask_per_batch": True, "causal": "bottom_right"},
}
LAYOUTS = {
    "head first": {"q_layout": "bhsd", "k_layout": "bhsd", "v_layout": "bhsd", "out_layout": "bhsd"},
    "mixed": {"q_layout": "bhsd", "v_layout": "bhsd"},
}
VARIANTS: dict[str, dict[str, object]] = {
    "window in a tile": {"causal": "top_left", "window": 50},
    "window of a tile": {"causal": "bottom_right", "window": 127},
    "window of tiles": {"causal": "bottom_right", "window": 300, "heads": (8, 2)},
    "window wider than everything": {"causal": "top_left", "window": 2**30},
    "window on both sides": {"window": 64, "size": (64, 64), "heads": (4, 4)},
    "wide window on both sides, masked": {"window": 200, "mask": "bool", "mask_per_batch": True},
    "window, large heads": {"causal": "bottom_right", "window": 255, "size": (256, 256)},
    "capped": {"softcap": 2.0, "size": (256, 256), "heads": (8, 4)},
    "capped, additive mask": {"softcap": 5.0, "mask": "additive"},
    "capped, window": {"softcap": 2.0, "causal": "top_left", "window": 150, "heads": (8, 4)},
    "sinks": {"sinks": True, "causal": "bottom_right", "size": (64, 64), "heads": (16, 2)},
    "sinks, window": {"sinks": True, "causal": "top_left", "window": 127, "size": (64, 64), "heads": (16, 2)},
    "sinks, capped, masked": {"sinks": True, "softcap": 3.0, "mask": "bool", "mask_per_head": True},
}
GPU_PREFILL = {
    **{
        f"configuration {i}": (half(causal="bottom_right"), i)
        for i in range(len(PREFILL.configurations(half(causal="bottom_right"), HOPPER)))
    },
    **{f"head size {size}": (half(size=size, dtype="float16"), 0) for size in HEAD_SIZES},
    **{f"mask {kind}": (half(**options), 0) for kind, options in MASKS.items()},
    **{f"layout {kind}": (half(**options, causal="top_left"), 0) for kind, options in LAYOUTS.items()},
    **{kind: (half(**options), 0) for kind, options in VARIANTS.items()},
    **{f"configuration {i}, window of tiles": (half(**VARIANTS["window of tiles"]), i) for i in (1, 2, 5)},
    **{f"configuration {i}, capped, window": (half(**VARIANTS["capped, window"]), i) for i in (1, 2)},
    **{f"configuration {i}, sinks, window": (half(**VARIANTS["sinks, window"]), i) for i in (1, 2)},
}
GPU_DECODE = {
    **{f"configuration {i}": (half(heads=(8, 2)), i) for i in range(len(DECODE.configurations(half(), HOPPER)))},
    **{f"head size {size}": (half(size=size, dtype="float16"), 0) for size in HEAD_SIZES},
    **{f"mask {kind}": (half(**options), 0) for kind, options in MASKS.items()},
    **{f"layout {kind}": (half(**options), 0) for kind, options in LAYOUTS.items()},
    **{f"heads {heads}": (half(heads=heads), 0) for heads in [(4, 4), (71, 1), (128, 1)]},
    **{kind: (half(**options), 0) for kind, options in VARIANTS.items() if "window" not in options},
}
GPU_PREFILL_SIZES = [
    {"batch": 3, "queries": 1, "keys": 1},
    {"batch": 1, "queries": 17, "keys": 17},
    {"batch": 2, "queries": 127, "keys": 128},
    {"batch": 1, "queries": 4097, "keys": 4097},
    {"batch": 1, "queries": 129, "keys": 1100},
    {"batch": 2, "queries": 1100, "keys": 129},
    {"batch": 19, "queries": 4097, "keys": 129},  # more heads than are worked on at a time
]
GPU_DECODE_SIZES = [
    *({"batch": batch, "keys": keys} for batch, keys in ((3, 1), (1, 17), (2, 127), (2, 128), (2, 4097))),
    *({"batch": batch, "keys": keys} for batch, keys in ((1, 9001), (40, 1100), (300, 70))),
]


def this_gpu() -> Target:
    """The target that the GPU at hand is, if it is one that the tests' configurations are meant for."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0, for which these configurations are")
    return HOPPER


@pytest.fixture(scope="module")
def gpu_builder(builder: KernelBuilder) -> KernelBuilder:
    """The builder, after it has built all GPU kernels at once, as many at a time as the machine can."""
    target = this_gpu()
    prefill = [request(PREFILL, p, target, index) for p, index in GPU_PREFILL.values()]
    builder.build([*prefill, *(request(DECODE, p, target, index) for p, index in GPU_DECODE.values())])
    return builder


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", GPU_PREFILL)
def test_prefill_on_the_gpu(gpu_builder: KernelBuilder, kind: str) -> None:
    """Every configuration, head size, mask and layout, at lengths beside the tile sizes."""
    p, index = GPU_PREFILL[kind]
    for sizes in GPU_PREFILL_SIZES:
        check(gpu_builder, request(PREFILL, p, HOPPER, index), sizes)


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", GPU_DECODE)
def test_decode_on_the_gpu(gpu_builder: KernelBuilder, kind: str) -> None:
    """As prefill, for one query, with as many splits as the configuration has, with fewer, and with one."""
    p, index = GPU_DECODE[kind]
    for sizes in GPU_DECODE_SIZES:
        check(gpu_builder, request(DECODE, p, HOPPER, index), sizes)
