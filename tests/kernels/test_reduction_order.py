"""In which order kernels reduce a row: one for all sizes where the batch must not matter, and what the code shows."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch

from tests.kernels.built_kernel import BuiltKernel, build, gpu_requests
from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelDispatch, KernelRequest, Target
from tkc.kernels.all_cases import benchmark_cases, input_of
from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.attention.spec import DecodeConfiguration
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.cases import Case
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.records import KernelRecord, read_records
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.target import CUDA_ARCHITECTURES, MULTIPROCESSORS
from tkc.schedules.database_folders import shipped_database, target_folder

HOPPER, CPU = Target.parse("cuda:sm_90a"), Target.parse("cpu")

# Of each family, the kernels of a language model; and whether its configurations have several orders.
_CHOSEN: dict[str, tuple[str, Any, bool | None]] = {
    "projection": ("matmul", MatmulParameters(4096, 4096, "bfloat16", residual=True), True),
    "GELU": ("matmul", MatmulParameters(4096, 1024, "bfloat16", bias=True, activation="gelu"), True),
    "float32": ("matmul", MatmulParameters(4096, 4096, "float32"), True),
    "odd rows": ("matmul", MatmulParameters(4096, 4100, "bfloat16"), False),
    "gated": ("matmul.gated", GatedMatmulParameters(14336, 4096, "bfloat16"), True),
    "experts": ("matmul.grouped", GroupedMatmulParameters(128, 2048, 768, "bfloat16"), True),
    "gated experts": (
        "matmul.grouped",
        GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu", rows="int64"),
        True,
    ),
    "heads": ("matmul.batched", BatchedMatmulParameters(512, 128, "bfloat16"), True),
    "FP8": ("matmul.scaled", ScaledMatmulParameters(4096, 7168), True),
    "prefill": (
        "attention.prefill",
        AttentionParameters(32, 8, 128, 128, "bfloat16", 128**-0.5, causal="bottom_right"),
        True,
    ),
    "decode": ("attention.decode", AttentionParameters(32, 8, 128, 128, "bfloat16", 128**-0.5), True),
    "latent": ("attention.latent_decode", LatentParameters(128, 512, 64, "bfloat16", 0.1), True),
    "norm": ("normalization", NormalizationParameters(4096, "bfloat16", "rms", 1e-5, residual=True), True),
    "quantized norm": (
        "quantized_rms_norm",
        QuantizedRMSNormParameters(7168, "bfloat16", 1e-6, "group", "bfloat16", residual=True),
        True,
    ),
    "gate": ("moe.topk_gate", MoeGateParameters(256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4), True),
    "permute": ("moe.permute", MoePermuteParameters(256), False),
    "combine": ("moe.combine", MoeCombineParameters(7168, 8, "bfloat16", "float32"), False),
    "SwiGLU": ("swiglu", SwiGLUParameters(14336, "bfloat16", scale="group"), False),
    "rotary": ("rotary", RotaryParameters(32, 128, "bfloat16", key_heads=8), False),
}


def of_benchmarks(kernels: Collection[str]) -> dict[str, tuple[str, Any, bool | None]]:
    """The first that is benchmarked of each of ``kernels``; how many orders its configurations have is not said."""
    return {
        case.kernel: (case.kernel, case.parameters, None) for case in benchmark_cases()[::-1] if case.kernel in kernels
    }


KERNELS = _CHOSEN | of_benchmarks(set(SPECS) - {name for name, _, _ in _CHOSEN.values()})


def orders(dispatch: KernelDispatch) -> set[Any]:
    """Those of a kernel's choices, over all sizes."""
    spec, p, target = dispatch.spec, dispatch.parameters, dispatch.target
    return {spec.reduction_order(p, choice.configuration, target) for choice in dispatch.choices}


@functools.cache
def shipped(target: Target) -> tuple[KernelRecord, ...]:
    """The records that come with tkc."""
    return read_records(target_folder(shipped_database(), target))


@functools.cache
def chosen(kind: str, batch_invariant: bool, target: Target = HOPPER) -> KernelDispatch:
    """What a compilation chooses by the records that come with tkc."""
    name, parameters, _ = KERNELS[kind]
    choose = RecordedChoices(shipped(target), batch_invariant=batch_invariant)
    return KernelDispatch(name, parameters, choose(SPECS[name], parameters, target), target)


def test_every_family_is_here() -> None:
    """A new one needs no line: what it is benchmarked with is checked."""
    assert {name for name, _, _ in KERNELS.values()} == set(SPECS)
    found = of_benchmarks({"rotary"})
    assert list(found) == ["rotary"] and found["rotary"][1] in [c.parameters for c in benchmark_cases()]


@pytest.mark.parametrize("kind", KERNELS)
def test_all_sizes_share_one_order(kind: str) -> None:
    """And where there are several, at least one configuration is left out, and all that depend on the batch."""
    name, parameters, several = KERNELS[kind]
    dispatch = chosen(kind, batch_invariant=True)
    (order,) = orders(dispatch)
    assert order is not None
    offered = SPECS[name].configurations(parameters, HOPPER)
    left_out = [c for c in offered if SPECS[name].reduction_order(parameters, c, HOPPER) != order]
    assert several is None or bool(left_out) == several


def test_without_it_sizes_have_orders_of_their_own() -> None:
    """Or there would be nothing to choose."""
    mixed = {kind for kind in KERNELS if len(orders(chosen(kind, batch_invariant=False))) > 1}
    assert {"projection", "gated", "experts", "gated experts", "FP8", "latent", "norm", "gate"} <= mixed
    assert orders(chosen("decode", batch_invariant=False)) == {None}


def test_few_rows_still_have_tiles_of_their_own() -> None:
    """One order is no single configuration: as many rows as one warpgroup multiplies, in narrow tiles, for few."""
    choices = chosen("projection", batch_invariant=True).choices
    assert len(choices) > 1
    assert choices[0].configuration.block_n < choices[-1].configuration.block_n


@pytest.mark.parametrize("arch", CUDA_ARCHITECTURES)
def test_every_gpu_has_some(arch: str) -> None:
    """No kernel that a GPU has is lost by the option; the CPU's have one order each."""
    for kind, (name, parameters, _) in KERNELS.items():
        for target in (Target.parse(f"cuda:{arch}"), CPU):
            if SPECS[name].unsupported(parameters, target) is None:
                assert None not in orders(chosen(kind, batch_invariant=True, target=target)), (kind, target)


def test_shares_of_the_depth_are_orders_of_their_own() -> None:
    """Tiles and stages are not; nor are blocks that stay, unless the epilogue multiplies."""
    spec, plain = SPECS["matmul"], MatmulParameters(4096, 4096, "bfloat16")

    def order(c: Tiling, p: MatmulParameters = plain, target: Target = HOPPER) -> Any:
        return spec.reduction_order(p, c, target)

    wide = Tiling(128, 256, 64, stages=4, threads=256)
    lasting = Tiling(128, 256, 64, stages=4, threads=256, blocks=MULTIPROCESSORS)
    narrow = Tiling(64, 32, 128, stages=6, threads=128)
    assert order(wide) == order(narrow) == order(lasting)
    few = [Tiling(16, 64, 128, stages=4, threads=128), Tiling(32, 64, 128, stages=4, threads=128)]
    assert order(few[0]) == order(few[1]) != order(wide)
    split = [Tiling(128, 64, depth, stages=4, threads=256, splits=splits) for depth in (64, 128) for splits in (2, 4)]
    shared = [Tiling(64, 64, depth, stages=4, threads=256, blocks=MULTIPROCESSORS) for depth in (64, 128)]
    assert len({order(c) for c in (wide, few[0], *split, *shared)}) == 8
    gelu = MatmulParameters(4096, 4096, "bfloat16", activation="gelu")
    assert order(wide, gelu) == order(narrow, gelu) != order(lasting, gelu)
    relu = MatmulParameters(4096, 4096, "bfloat16", activation="relu")
    assert order(wide, relu) == order(lasting, relu)
    ampere = Target.parse("cuda:sm_80")
    assert order(wide, target=ampere) == order(few[0], target=ampere)  # one instruction for all
    full = MatmulParameters(4096, 4096, "float32")
    slices = [Tiling(64, 64, depth, stages=4, threads=128, blocks=MULTIPROCESSORS) for depth in (32, 64)]
    assert order(slices[0], full) != order(slices[1], full)


def test_splits_that_the_batch_decides_have_no_order() -> None:
    """One split does; so do those of a number of keys."""
    spec, p = SPECS["attention.decode"], KERNELS["decode"][1]
    assert spec.reduction_order(p, DecodeConfiguration(64, 16, 128), HOPPER) is None
    for c in (DecodeConfiguration(64, 1, 128), DecodeConfiguration(64, 16, 128, split_keys=256)):
        assert spec.reduction_order(p, c, HOPPER) == c


@pytest.mark.daily(1)
@pytest.mark.parametrize("split_keys", [0, 128, 256, 512])
def test_the_code_splits_keys_as_the_order_says(split_keys: int) -> None:
    """How many blocks of keys a split has is computed from the batch, or is not."""
    p, c = KERNELS["decode"][1], DecodeConfiguration(64, 16, 128, split_keys=split_keys)
    source = cuda_source(KernelRequest("attention.decode", p, c, HOPPER))
    (computed,) = re.findall(r"split_blocks = (.*keys.*);", source)
    assert ("batch" in computed) == (SPECS["attention.decode"].reduction_order(p, c, HOPPER) is None)


# One configuration of each form that a product has, small enough to be generated in a second or two.
_FORMS = {
    "block": ("matmul", MatmulParameters(256, 256, "bfloat16"), Tiling(64, 64, 64, stages=2, threads=128)),
    "blocks that stay": (
        "matmul",
        MatmulParameters(256, 256, "bfloat16"),
        Tiling(128, 64, 64, stages=2, threads=256, blocks=MULTIPROCESSORS),
    ),
    "few rows": ("matmul", MatmulParameters(256, 256, "bfloat16"), Tiling(32, 64, 64, stages=2, threads=128)),
    "gated": ("matmul.gated", GatedMatmulParameters(256, 256, "bfloat16"), Tiling(64, 64, 64, stages=2, threads=128)),
    "gated, few rows": (
        "matmul.gated",
        GatedMatmulParameters(256, 256, "bfloat16"),
        Tiling(16, 64, 64, stages=2, threads=128),
    ),
    "experts": (
        "matmul.grouped",
        GroupedMatmulParameters(4, 256, 256, "bfloat16"),
        Tiling(64, 64, 64, stages=2, threads=128),
    ),
    "experts, blocks that stay": (
        "matmul.grouped",
        GroupedMatmulParameters(4, 256, 256, "bfloat16", gated="silu"),
        Tiling(128, 64, 64, stages=2, threads=256, blocks=MULTIPROCESSORS),
    ),
    "experts, few rows": (
        "matmul.grouped",
        GroupedMatmulParameters(4, 256, 256, "bfloat16"),
        Tiling(16, 64, 64, stages=2, threads=128, blocks=MULTIPROCESSORS),
    ),
    "heads": (
        "matmul.batched",
        BatchedMatmulParameters(256, 256, "bfloat16"),
        Tiling(64, 64, 64, stages=2, threads=128),
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", _FORMS)
def test_the_code_has_the_instruction_that_the_order_names(kind: str) -> None:
    """TileLang chooses it, and nothing else that multiplies is there."""
    name, parameters, configuration = _FORMS[kind]
    source = cuda_source(KernelRequest(name, parameters, configuration, HOPPER))
    order = SPECS[name].reduction_order(parameters, configuration, HOPPER)
    found = {"wgmma": "tl::wgmma_" in source, "mma.sync": "tl::mma_sync" in source}
    assert [instruction for instruction, is_there in found.items() if is_there] == [order[0]], order  # type: ignore[index]


ATOMIC = re.compile(r"\b(?i:atomic)\w*\(\(&\((?:\(\((?P<cast>\w+)\*\))?(?P<buffer>\w+)")


@pytest.mark.parametrize(
    "kind", ["projection", "gated experts", "decode", "latent", "norm", "gate", "permute", "combine"]
)
@pytest.mark.daily(2)
def test_no_kernel_adds_floats_in_the_order_in_which_threads_come(kind: str) -> None:
    """Only what counts experts is atomic, in integers; so kernels repeat their bits."""
    source = cuda_source(chosen(kind, batch_invariant=False).requests[0])
    found = list(ATOMIC.finditer(source))
    assert len(found) == len(re.findall(r"\b(?i:atomic)\w*\(", source))
    assert {match["buffer"] for match in found} == ({"block_counts", "next_position"} if kind == "permute" else set())
    for match in found:
        assert match["cast"] == "int" or f" int {match['buffer']}[" in source, match[0]


# Kernels of rows that are small, but of more than one slice, tile and group of each.
_ON_A_GPU: dict[str, tuple[str, Any]] = {
    "projection": ("matmul", MatmulParameters(512, 1088, "bfloat16", residual=True)),
    "GELU": ("matmul", MatmulParameters(512, 1024, "bfloat16", bias=True, activation="gelu")),
    "SiLU and residual": ("matmul", MatmulParameters(512, 512, "bfloat16", activation="silu", residual=True)),
    "float32": ("matmul", MatmulParameters(512, 1088, "float32", bias=True)),
    "gated": ("matmul.gated", GatedMatmulParameters(512, 1088, "bfloat16")),
    "experts": ("matmul.grouped", GroupedMatmulParameters(8, 512, 768, "bfloat16")),
    "gated experts": ("matmul.grouped", GroupedMatmulParameters(8, 512, 768, "bfloat16", gated="silu", rows="int64")),
    "FP8": ("matmul.scaled", ScaledMatmulParameters(512, 1088)),
    "heads": ("matmul.batched", BatchedMatmulParameters(512, 192, "bfloat16")),
    "norm": ("normalization", NormalizationParameters(4096, "bfloat16", "layer", 1e-5, bias=True, residual=True)),
    "quantized norm": ("quantized_rms_norm", QuantizedRMSNormParameters(1536, "bfloat16", 1e-6, "token", "bfloat16")),
    "gate": ("moe.topk_gate", MoeGateParameters(256, 8, "softmax", normalize=True)),
    "SwiGLU": ("swiglu", SwiGLUParameters(1536, "bfloat16", scale="token")),
    "rotary": ("rotary", RotaryParameters(8, 128, "bfloat16", key_heads=2, epsilon=1e-6, weight=True)),
}
_MANY, _FEWER = 300, (1, 2, 17, 64, 129)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", _ON_A_GPU)
def test_equal_orders_give_equal_bits_on_a_gpu(builder: KernelBuilder, kind: str) -> None:
    """All configurations of one order, on all rows; and each on the first few alone, which it may tile otherwise."""
    name, parameters = _ON_A_GPU[kind]
    torch.manual_seed(0)
    inputs = _random(name, parameters, _MANY)
    first: dict[Any, tuple[torch.Tensor, ...]] = {}
    for kernel in build(builder, gpu_requests(name, parameters)):
        request = kernel.request
        order = request.spec.reduction_order(parameters, request.configuration, request.target)
        found = kernel(*inputs)
        for one, other in zip(first.setdefault(order, found), found, strict=True):
            assert torch.equal(one, other), f"{request.configuration} has the order {order}"
        if "offsets" not in {tensor.name for tensor in request.spec.inputs(parameters)}:
            _check_few(kernel, inputs, found)


def _check_few(kernel: BuiltKernel, inputs: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> None:
    """The same rows have the same bits when there are no others."""
    spec, parameters = kernel.request.spec, kernel.request.parameters
    axes = [_row_axis(spec.name, tensor.shape) for tensor in spec.inputs(parameters)]
    written = [_row_axis(spec.name, tensor.shape) for tensor in spec.outputs(parameters)]
    for rows in _FEWER:
        some = [_first(tensor, axis, rows) for tensor, axis in zip(inputs, axes, strict=True)]
        for one, other, axis in zip(kernel(*some), found, written, strict=True):
            assert torch.equal(one, _first(other, axis, rows)), f"{kernel.request.configuration}, {rows} rows"


def _row_axis(name: str, shape: Sequence[int | str]) -> int | None:
    """Which axis of a tensor the rows are; ``None`` where it has none."""
    return shape.index(_row_size(name)) if _row_size(name) in shape else None


def _row_size(name: str) -> str:
    return str(SPECS[name].dispatch_size)


def _first(tensor: torch.Tensor, axis: int | None, rows: int) -> torch.Tensor:
    return tensor if axis is None else tensor.narrow(axis, 0, rows).contiguous()


def _random(name: str, parameters: Any, rows: int) -> list[torch.Tensor]:
    """Inputs of a kernel on the GPU, with so many rows."""
    sizes = dict.fromkeys(SPECS[name].sizes(parameters), 3) | {_row_size(name): rows, "tokens": rows}
    case = Case(name, parameters, sizes)
    return [input_of(case, t, sizes, torch.device("cuda")) for t in SPECS[name].inputs(parameters)]


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("keys", [70, 1000, 9000])
def test_a_sequence_decodes_to_the_same_bits_on_a_gpu(builder: KernelBuilder, keys: int) -> None:
    """In every configuration that has an order: alone, and first of many."""
    name, p = "attention.decode", AttentionParameters(8, 2, 128, 128, "bfloat16", 128**-0.5)
    torch.manual_seed(0)
    sizes = {"batch": 96, "keys": keys}
    case = Case(name, p, sizes)
    inputs = [input_of(case, t, sizes, torch.device("cuda")) for t in SPECS[name].inputs(p)]
    tried, differing = 0, 0
    for kernel in build(builder, gpu_requests(name, p)):
        found = kernel(*inputs)[0]
        equal = [torch.equal(kernel(*(t[:rows].contiguous() for t in inputs))[0], found[:rows]) for rows in (1, 3, 33)]
        if SPECS[name].reduction_order(p, kernel.request.configuration, kernel.request.target) is None:
            differing += not all(equal)
        else:
            assert all(equal), kernel.request.configuration
            tried += 1
    assert tried >= 3
    assert differing > 0 or keys < 1000  # or there would be nothing to leave out
