"""Attention kernels for CUDA: what is built of them without a GPU, and what they compute on one."""

from __future__ import annotations

import re

import pytest
import torch

from tests.kernels.attention_checks import DECODE, HOPPER, PREFILL, check, parameters, request
from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import Target
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.spec import DECODE_RESIDENT, decode_key_rows, resident_blocks


@pytest.mark.daily(1)
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
    "padding": {"mask": "bool", "mask_per_batch": True, "mask_per_query": False},
    "padding, causal": {
        **{"mask": "bool", "mask_per_batch": True, "mask_per_query": False},
        **{"causal": "bottom_right", "heads": (8, 2)},
    },
    "additive padding": {"mask": "additive", "mask_per_batch": True, "mask_per_query": False, "dtype": "float16"},
    "additive padding of the head, capped": {
        **{"mask": "additive", "mask_per_head": True, "mask_per_query": False},
        "softcap": 3.0,
    },
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
    **{f"configuration {i}, padding": (half(**MASKS["padding"]), i) for i in (1, 2, 3, 5)},
    **{f"configuration {i}, additive padding": (half(**MASKS["additive padding"]), i) for i in (2, 5)},
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
