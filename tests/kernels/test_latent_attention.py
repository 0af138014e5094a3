"""Attention over a cache of latents against PyTorch: parts joined and apart, masks, odd numbers of keys and heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import build, build_for, gpu_requests
from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.attention.latent_spec import LatentDecode
from tkc.kernels.attention.parameters import LatentParameters

SPEC = LatentDecode()
CPU, HOPPER = Target.parse("cpu"), Target.parse("cuda:sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

SMALL = LatentParameters(num_heads=5, latent_size=48, rope_size=8, dtype="float32", scale=0.2)
DEEPSEEK = LatentParameters(num_heads=128, latent_size=512, rope_size=64, dtype="bfloat16", scale=192**-0.5)
JOINED = {"joined_queries": True, "joined_cache": True}


def random_inputs(p: LatentParameters, sizes: Mapping[str, int], device: str = "cpu") -> list[torch.Tensor]:
    """Normal tensors; a mask hides half the keys, all of them from one head of four, or none by its lowest number."""
    generator = torch.Generator(device).manual_seed(sum(sizes.values()))
    inputs = []
    for tensor in SPEC.inputs(p):
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
        values = torch.randn(shape, generator=generator, device=device)
        if tensor.name == "mask":
            hidden = values < 0
            row = torch.arange(hidden[..., 0].numel(), device=device).view(*shape[:-1], 1)
            hidden = (hidden & (row % 4 != 2)) | (row % 4 == 1)
            values = ~hidden if p.mask == "bool" else values.masked_fill(hidden, -torch.inf)
        inputs.append(values.to(getattr(torch, tensor.dtype)))
    return inputs


def assert_right(p: LatentParameters, out: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    """``out`` is what the reference computes; a head that sees nothing gets zeros."""
    (expected,) = SPEC.reference(p, *inputs)
    tolerance = TOLERANCE[p.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)


KINDS = {
    "all apart": SMALL,
    "all joined": dataclasses.replace(SMALL, **JOINED),
    "joined cache, bfloat16, boolean mask of the batch": dataclasses.replace(
        SMALL, dtype="bfloat16", joined_cache=True, mask="bool", mask_per_batch=True
    ),
    "joined queries, float16, boolean mask of the head": dataclasses.replace(
        SMALL, dtype="float16", joined_queries=True, mask="bool", mask_per_head=True
    ),
    "two heads, additive mask of both": dataclasses.replace(
        SMALL, num_heads=2, latent_size=40, mask="additive", mask_per_batch=True, mask_per_head=True
    ),
}


@pytest.mark.parametrize("p", KINDS.values(), ids=KINDS)
@pytest.mark.daily(2)
def test_on_the_cpu(builder: KernelBuilder, p: LatentParameters) -> None:
    """One kernel serves every number of keys, those beside its tile sizes included."""
    kernel = build_for(builder, SPEC.name, p)
    for keys in (1, 17, 64, 131):
        inputs = random_inputs(p, {"batch": 3, "keys": keys})
        assert_right(p, kernel(*inputs)[0], inputs)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.integers(1, 4), keys=st.integers(1, 200))
def test_any_sizes(builder: KernelBuilder, batch: int, keys: int) -> None:
    """Every batch and number of keys, by the kernel of each head's own additive mask."""
    p = KINDS["two heads, additive mask of both"]
    inputs = random_inputs(p, {"batch": batch, "keys": keys})
    assert_right(p, build_for(builder, SPEC.name, p)(*inputs)[0], inputs)


def test_the_reference_is_pytorch_attention() -> None:
    """Every head attends to the same keys, whose first columns are the values."""
    p = dataclasses.replace(SMALL, mask="additive", mask_per_head=True)
    q, q_rope, cache, rope, mask = random_inputs(p, {"batch": 2, "keys": 9})
    mask = mask.nan_to_num(neginf=-5.0)
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.cat([q, q_rope], -1)[:, :, None],
        torch.cat([cache, rope], -1)[:, None],
        cache[:, None],
        attn_mask=mask,
        scale=p.scale,
        enable_gqa=True,
    )
    torch.testing.assert_close(SPEC.reference(p, q, q_rope, cache, rope, mask)[0], expected[:, :, 0])


def test_work_counts_the_cache_once() -> None:
    """Both products of every head and key; queries, cache and output once each, whatever the number of heads."""
    work = SPEC.work(dataclasses.replace(DEEPSEEK, **JOINED), {"batch": 3, "keys": 1000})
    assert work.flops == 2 * 3 * 128 * 1000 * (576 + 512)
    assert work.bytes == 2 * 3 * (128 * 576 + 1000 * 576 + 128 * 512)


@pytest.mark.parametrize(
    ("change", "target", "reason"),
    [
        ({"scale": 0.0}, CPU, "scale"),
        ({"dtype": "float32"}, HOPPER, "float32"),
        ({"latent_size": 96}, HOPPER, "96"),
        ({"latent_size": 1024}, HOPPER, "1024"),
        ({"rope_size": 8}, HOPPER, "8"),
    ],
)
def test_refusals_name_the_cause(change: dict[str, object], target: Target, reason: str) -> None:
    """What no kernel serves is refused in words that say which parameter is in the way."""
    refusal = SPEC.unsupported(dataclasses.replace(DEEPSEEK, **change), target)
    assert refusal is not None and reason in refusal


@given(
    num_heads=st.integers(1, 200),
    latent_size=st.integers(1, 8).map(lambda n: 64 * n),
    rope_size=st.integers(1, 8).map(lambda n: 16 * n),
    arch=st.sampled_from(["sm_80", "sm_89", "sm_90a", "sm_120"]),
)
def test_every_supported_kernel_has_a_configuration(
    num_heads: int, latent_size: int, rope_size: int, arch: str
) -> None:
    """Whatever the sizes, some tiling fits every GPU, and only Hopper's warpgroups alternate."""
    p = dataclasses.replace(DEEPSEEK, num_heads=num_heads, latent_size=latent_size, rope_size=rope_size)
    target = Target("cuda", arch)
    assert SPEC.unsupported(p, target) is None
    configurations = SPEC.configurations(p, target)
    assert configurations
    assert arch == "sm_90a" or not any(c.alternating for c in configurations)


@pytest.mark.daily(1)
def test_warpgroups_part_before_any_barrier_of_all_threads() -> None:
    """Once the loading warpgroup has gone its own way, a barrier of the whole block would never be passed."""
    p = dataclasses.replace(DEEPSEEK, joined_cache=True)
    configuration = SPEC.configurations(p, HOPPER)[0]
    assert configuration.alternating
    source = cuda_source(KernelRequest(SPEC.name, p, configuration, HOPPER))
    before, _, after = source.partition("warpgroup_reg_dealloc")
    loading, _, multiplying = after.partition("warpgroup_reg_alloc")
    assert "__syncthreads()" in before and "__syncthreads()" not in after
    assert "tl::tma_load(" in loading and "tl::tma_load(" not in multiplying and "cp_async" not in source
    assert "64, 64, 16, false, false" in multiplying and "64, 128, 16, false, true" in multiplying


CUDA_BUILDS = {
    "alternating, split": ("sm_90a", 1, {**JOINED, "mask": "bool", "mask_per_batch": True}),
    "together, few heads, odd sizes": (
        "sm_90a", -1, {"num_heads": 20, "latent_size": 192, "rope_size": 16, "mask": "additive", "mask_per_head": True},
    ),
    "least shared memory": ("sm_89", 0, {"dtype": "float16"}),
}  # fmt: skip


@pytest.mark.daily(3)
@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "index", "change"), CUDA_BUILDS.values(), ids=CUDA_BUILDS)
def test_cuda_kernels_build_without_a_gpu(
    builder: KernelBuilder, arch: str, index: int, change: dict[str, object]
) -> None:
    """Each architecture has a kernel in machine code."""
    p, target = dataclasses.replace(DEEPSEEK, **change), Target("cuda", arch)
    wanted = KernelRequest(SPEC.name, p, SPEC.configurations(p, target)[index], target)
    assert builder.build([wanted])[wanted].path.stat().st_size > 0


GPU_KINDS = {
    "all joined": dataclasses.replace(DEEPSEEK, **JOINED),
    "float16, boolean mask of the batch": dataclasses.replace(
        DEEPSEEK, dtype="float16", mask="bool", mask_per_batch=True
    ),
    "eighty heads, additive mask of the head": dataclasses.replace(
        DEEPSEEK, num_heads=80, joined_cache=True, mask="additive", mask_per_head=True
    ),
    "sixteen heads, other sizes": dataclasses.replace(DEEPSEEK, num_heads=16, latent_size=192, rope_size=32),
    "halves of one part": dataclasses.replace(DEEPSEEK, num_heads=64, latent_size=384),
}


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("p", GPU_KINDS.values(), ids=GPU_KINDS)
def test_on_the_gpu(builder: KernelBuilder, p: LatentParameters) -> None:
    """Every configuration, at numbers of keys beside the tile sizes; with few keys most splits are empty."""
    kernels = build(builder, gpu_requests(SPEC.name, p))
    for batch, keys in ((3, 1), (1, 17), (2, 127), (2, 128), (5, 1025), (2, 4097)):
        inputs = random_inputs(p, {"batch": batch, "keys": keys}, "cuda")
        for kernel in kernels:
            assert_right(p, kernel(*inputs)[0], inputs)


@pytest.mark.gpu
@pytest.mark.timeout(1200)
def test_scores_that_grow_on_the_gpu(builder: KernelBuilder) -> None:
    """Later keys have ever larger scores, so that what was added up is rescaled again and again, seldom and by much."""
    p = dataclasses.replace(DEEPSEEK, joined_queries=True)
    kernels = build(builder, gpu_requests(SPEC.name, p))
    for batch, keys, largest in ((2, 300, 3.0), (1, 5000, 8.0), (3, 1025, 30.0)):
        q, cache, rope = random_inputs(p, {"batch": batch, "keys": keys}, "cuda")
        rope *= torch.linspace(0.05, largest, keys, device="cuda").to(rope.dtype)[:, None]  # keys alone
        for kernel in kernels:
            assert_right(p, kernel(q, cache, rope)[0], [q, cache, rope])
