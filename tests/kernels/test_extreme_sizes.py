"""Kernels of every family at the sizes that calls may have: none, one, and those beside the sides of tiles."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.built_kernel import BuiltKernel, build, gpu_target
from tests.kernels.cuda_source import cuda_code
from tests.kernels.extremes import CASES, ODD_CASES, Case, assert_same, call, inputs_of, of_checked, requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters

CPU, HOPPER = Target.parse("cpu"), Target.parse("cuda:sm_90a")
LONGEST = 2**31 - 1  # of an axis
HIGHEST = 65_535  # of a grid


def check(kernel: BuiltKernel, case: Case) -> None:
    """At all of the case's sizes."""
    device = "cuda" if kernel.request.target.is_cuda else "cpu"
    for sizes in case.sizes:
        inputs = inputs_of(case, sizes, device)
        expected = kernel.request.spec.reference(case.parameters, *inputs)
        about = f"{kernel.request.configuration} at {sizes}"
        assert_same(call(kernel, inputs, sizes), expected, about)


def test_every_kernel_has_cases() -> None:
    """A new one needs no line: it is called at sizes beside those of its own small cases."""
    assert {case.kernel for case in CASES.values()} == set(SPECS)
    rotary = of_checked({"rotary"})
    assert {case.kernel for case in rotary.values()} == {"rotary"}
    (first, *_) = rotary.values()
    assert {0, 1} <= {sizes["sequence"] for sizes in first.sizes}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CASES)
def test_any_size_on_the_cpu(builder: KernelBuilder, name: str) -> None:
    """Nothing is read or written beyond the tensors, and all of the outputs is written."""
    for kernel in build(builder, requests(CASES[name], CPU)):
        check(kernel, CASES[name])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.daily(2)
def test_views_that_begin_anywhere_on_the_cpu(builder: KernelBuilder, name: str) -> None:
    """Tensors may begin one element after an address that vectors are aligned to."""
    case = CASES[name]
    for kernel in build(builder, requests(case, CPU)):
        inputs = inputs_of(case, case.usual, "cpu", shift=1)
        expected = kernel.request.spec.reference(case.parameters, *inputs)
        assert_same(call(kernel, inputs, case.usual, shift=1), expected, name)


@pytest.mark.daily(1)
def test_odd_sizes_on_the_cpu(builder: KernelBuilder) -> None:
    """Constant sizes that neither tiles nor vectors divide; built side by side."""
    named = {name: requests(case, CPU)[0] for name, case in ODD_CASES.items()}
    built = {kernel.request: kernel for kernel in build(builder, named.values())}
    for name, request in named.items():
        check(built[request], ODD_CASES[name])


@pytest.fixture(scope="module")
def gpu_kernels(builder: KernelBuilder) -> dict[str, list[BuiltKernel]]:
    """Every case's kernels on this machine's GPU, built side by side."""
    target = gpu_target()
    wanted = {name: requests(case, target) for name, case in CASES.items()}
    built = {kernel.request: kernel for kernel in build(builder, [r for each in wanted.values() for r in each])}
    return {name: [built[request] for request in each] for name, each in wanted.items()}


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_any_size_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """As on the CPU, for a configuration of each kind."""
    if not gpu_kernels[name]:
        pytest.skip("no kernel on this GPU")
    for kernel in gpu_kernels[name]:
        check(kernel, CASES[name])
        torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_views_that_begin_anywhere_are_refused_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """By the tensor's number, and without harm to the device; executables copy such inputs."""
    case = CASES[name]
    for kernel in gpu_kernels[name]:
        inputs = inputs_of(case, case.usual, "cuda", shift=1)
        with pytest.raises(ValueError, match="no multiple of"):
            call(kernel, inputs, case.usual)
        torch.cuda.synchronize()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].kernel == "matmul.grouped"])
def test_no_group_has_rows(builder: KernelBuilder, name: str) -> None:
    """All rows lie past the groups, and are zero."""
    (kernel,) = build(builder, requests(CASES[name], CPU))
    _check_empty_groups(kernel, CASES[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].kernel == "matmul.grouped"])
def test_no_group_has_rows_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """As on the CPU."""
    for kernel in gpu_kernels[name]:
        _check_empty_groups(kernel, CASES[name])


def _check_empty_groups(kernel: BuiltKernel, case: Case) -> None:
    device = "cuda" if kernel.request.target.is_cuda else "cpu"
    *inputs, offsets = inputs_of(case, case.usual, device)
    (out,) = call(kernel, [*inputs, torch.zeros_like(offsets)], case.usual)
    assert (out == 0).all()


@pytest.mark.parametrize("experts", [torch.tensor([-1, 8, 9, 2**40, -(2**40), 3]), torch.arange(-300, 300)])
def test_no_expert_is_counted_that_there_is_not(builder: KernelBuilder, experts: torch.Tensor) -> None:
    """Ids out of range count as the nearest expert's, and nothing is written outside."""
    (kernel,) = build(builder, requests(CASES["permute"], CPU))
    _check_experts(kernel, experts)


@pytest.mark.gpu
def test_no_expert_is_counted_that_there_is_not_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]]) -> None:
    """As on the CPU."""
    for kernel in gpu_kernels["permute"]:
        _check_experts(kernel, torch.arange(-300, 300, device="cuda"))


def _check_experts(kernel: BuiltKernel, experts: torch.Tensor) -> None:
    expected = kernel.request.spec.reference(kernel.request.parameters, experts)
    assert_same(call(kernel, [experts], {"copies": len(experts)}), expected, experts)


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        ("matmul", MatmulParameters(0, 64, "float32")),
        ("matmul", MatmulParameters(64, 0, "float32")),
        ("matmul.batched", BatchedMatmulParameters(None, 0, "float32")),
        ("matmul.gated", GatedMatmulParameters(0, 64, "bfloat16")),
        ("matmul.grouped", GroupedMatmulParameters(0, 64, 64, "bfloat16")),
        ("matmul.grouped", GroupedMatmulParameters(2, 64, 0, "bfloat16")),
        ("matmul.scaled", ScaledMatmulParameters(64, 0)),
        ("attention.latent_decode", LatentParameters(0, 64, 64, "bfloat16", 1.0)),
        ("swiglu", SwiGLUParameters(0, "bfloat16")),
        ("normalization", NormalizationParameters(0, "bfloat16", "rms", 1e-6)),
        ("quantized_rms_norm", QuantizedRMSNormParameters(0, "bfloat16", 1e-6, "group")),
        ("rotary", RotaryParameters(0, 64, "bfloat16")),
        ("moe.permute", MoePermuteParameters(0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", [CPU, HOPPER], ids=str)
def test_constant_sizes_of_zero_are_refused(kernel: str, parameters: object, target: Target) -> None:
    """By the size's name."""
    assert "is 0, and at least one is needed" in (SPECS[kernel].unsupported(parameters, target) or "")


def test_longer_axes_than_kernels_count_are_refused(builder: KernelBuilder) -> None:
    """Sizes are 32-bit numbers in kernels; a longer one is named, and not cut off."""
    (kernel,) = build(builder, requests(CASES["permute"], CPU))
    tensors = [torch.zeros(1, dtype=torch.int64).expand(LONGEST + 1) for _ in range(4)]
    offsets, counts = torch.zeros(9, dtype=torch.int32), torch.zeros(1, 9, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"moe\.permute: axis 0 of experts is 2147483648 long"):
        kernel.function(*tensors, offsets, tensors[0], counts)


@pytest.mark.daily(1)
@pytest.mark.nvcc
def test_what_would_make_the_device_fail_is_refused(builder: KernelBuilder) -> None:
    """Unaligned views and axes that are too long are named before anything is launched, or a device looked for."""
    kernel, *_ = build(builder, requests(CASES["rms"], HOPPER)[:1])
    rows, weight = torch.zeros(4, 264, dtype=torch.bfloat16), torch.zeros(264, dtype=torch.bfloat16)
    shifted = torch.zeros(4 * 264 + 1, dtype=torch.bfloat16)[1:].view(4, 264)
    with pytest.raises(ValueError, match=r"tensor 1 of a kernel .* no multiple of 16 bytes"):
        kernel.function(rows, shifted, weight, rows, rows)
    long = rows[:1].expand(LONGEST + 1, 264)
    with pytest.raises(ValueError, match="axis 0 of tensor 0 of a kernel is 2147483648 long"):
        kernel.function(long, long, weight, long, long)
    with pytest.raises(RuntimeError, match="expected cuda"):
        kernel.function(rows, rows, weight, rows, rows)


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", CASES)
def test_grids_are_launched_at_any_size(name: str) -> None:
    """A grid's second and third axes take 65,535 blocks: those of no size lie there, or they go on along another."""
    for request in requests(CASES[name], HOPPER):
        assert all(height <= HIGHEST for height in cuda_code(request).heights), request


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        *("batched", "grouped", "prefill, bottom right", "prefill, no mask", "prefill, window, cap, sinks", "decode"),
        *("decode, cap, sinks", "latent", "latent, mask", "rotary"),
    ],
)
def test_more_blocks_than_a_grid_is_high_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """As many sequences, matrices or tiles of rows."""
    case = CASES[name]
    small = {size: 3 for size in case.usual}
    sizes = {"m": HIGHEST * 128 + 1} if name == "grouped" else {**small, "batch": HIGHEST + 4}
    inputs = inputs_of(case, sizes, "cuda")
    for kernel in gpu_kernels[name]:
        expected = kernel.request.spec.reference(case.parameters, *inputs)
        assert_same(call(kernel, inputs, sizes), expected, kernel.request.configuration)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_grids_that_cannot_be_launched_are_refused(builder: KernelBuilder) -> None:
    """By the kernel's name, and the next call works."""
    case = Case("matmul", MatmulParameters(HIGHEST * 64 + 8, 64, "bfloat16"), {"m": 1})
    kinds = [(request, request.configuration) for request in requests(case, gpu_target())]
    wide = [request for request, c in kinds if isinstance(c, Tiling) and (c.block_n, c.blocks, c.splits) == (64, 0, 1)]
    assert wide
    for kernel in build(builder, wide):
        inputs = inputs_of(case, case.usual, "cuda")
        with pytest.raises(ValueError, match=r"matmul.* would take 65536 blocks on axis y of its grid"):
            call(kernel, inputs, case.usual)
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        *("matmul, three outputs", "matmul, float32", "gated", "scaled", "swiglu", "rms", "layer", "gate", "rotary"),
        *("combine", "decode", "quantized rms, a scale per token", "quantized rms, a scale per group"),
    ],
)
def test_more_elements_than_32_bits_count_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """The last rows of tensors of more than 2**31 elements."""
    for kernel in gpu_kernels[name]:
        _check_last_rows(kernel, CASES[name], name)


def _check_last_rows(kernel: BuiltKernel, case: Case, name: str) -> None:
    spec, p = kernel.request.spec, case.parameters
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of the GPU's memory")
    first = spec.inputs(p)[0]
    long = {"rotary": "sequence", "decode": "keys", "combine": "copies"}.get(name, str(first.shape[0]))
    each = {"rotary": 2 * 4 * 64, "decode": 2 * 2 * 64, "combine": p.channels if name == "combine" else 0}
    count = 2**31 // each.get(name, int(first.shape[-1])) + 3
    sizes = {**case.usual, long: count}
    inputs = []
    for declared, small in zip(spec.inputs(p), inputs_of(case, case.usual, "cuda"), strict=True):
        if long not in declared.shape:
            inputs.append(small)
            continue
        axis = declared.shape.index(long)
        repeats = [1] * small.ndim
        repeats[axis] = -(-count // small.shape[axis])
        inputs.append(small.repeat(repeats).narrow(axis, 0, count).contiguous())
    if name == "combine":
        inputs[1].fill_(count - 1)
        inputs[1][:, 0] = count - 2
    outputs = call(kernel, inputs, sizes)
    if name in ("combine", "decode"):
        entries = slice(1, 2) if name == "decode" else slice(None)
        if name == "decode":
            inputs = [t[entries] if t.ndim == 4 else t for t in inputs]
            outputs = [outputs[0][entries]]
        assert_same(outputs, spec.reference(p, *inputs), sizes)
        return
    axis = 1 if name == "rotary" else 0
    tail = [t.narrow(axis if t.ndim == 4 else 0, count - 5, 5) if count in t.shape else t for t in inputs]
    last = [t.narrow(axis, count - 5, 5) for t in outputs]
    assert_same(last, spec.reference(p, *tail), sizes)
