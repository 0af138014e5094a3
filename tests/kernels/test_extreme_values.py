"""NaN and infinities in every input of every kernel family come out as PyTorch's functions let them."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from tests.kernels.built_kernel import BuiltKernel, build, gpu_requests, gpu_target
from tests.kernels.cuda_source import cuda_source
from tests.kernels.extremes import CASES, Case, assert_same, call, inputs_of, requests
from tkc.builder import KernelBuilder
from tkc.kernels import Target
from tkc.kernels.matmul.parameters import MatmulParameters

CPU, HOPPER = Target.parse("cpu"), Target.parse("cuda:sm_90a")
VALUES = (math.nan, math.inf, -math.inf)

# The others take no numbers, or add to CASES nothing but sizes.
NAMES = [name for name, case in CASES.items() if case.kernel != "moe.permute"]


def check(kernel: BuiltKernel, case: Case) -> None:
    """Puts each value into each input, at one place and throughout a row, and compares with the reference."""
    spec, p = kernel.request.spec, case.parameters
    device = "cuda" if kernel.request.target.is_cuda else "cpu"
    clean = inputs_of(case, case.usual, device)
    for nth, declared in enumerate(spec.inputs(p)):
        if not clean[nth].is_floating_point():
            continue
        # FP8 has no infinity, and its scales are finite where codes are not zero.
        for value in (math.nan,) if kernel.request.kernel == "matmul.scaled" else VALUES:
            for whole_row in (False, True):
                inputs = [tensor.clone() for tensor in clean]
                at = tuple(size // 2 for size in inputs[nth].shape)
                inputs[nth][at[:-1] if whole_row and len(at) > 1 else at] = value
                about = f"{kernel.request.configuration} with {value} in {declared.name}"
                outputs = call(kernel, inputs, case.usual)
                with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's GELU of infinity is NaN on some CPUs
                    expected = spec.reference(p, *inputs)
                if declared.name in ("v", "cache"):
                    outputs, expected = _where_weighed(kernel, nth, clean, inputs, outputs, expected)
                assert_same(outputs, expected, about)


def _where_weighed(
    kernel: BuiltKernel,
    nth: int,
    clean: list[torch.Tensor],
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    expected: tuple[torch.Tensor, ...],
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
    """The results, with those of queries that do not see a value replaced by what they are without it.

    PyTorch's own kernels differ there: a weight of zero times NaN is NaN, and keys that are not visited count for
    nothing. Ours may be either, and no other number.
    """
    without = [tensor.clone() for tensor in inputs]
    without[nth] = torch.where(inputs[nth] == clean[nth], clean[nth], 0)
    (hidden,) = kernel.request.spec.reference(kernel.request.parameters, *without)
    (out,), (want,) = outputs, expected
    free = want.isnan() & ~out.isnan()
    if kernel.request.parameters.mask is None and not getattr(kernel.request.parameters, "causal", None):
        assert not free.any()
    torch.testing.assert_close(out[free], hidden[free], rtol=0.02, atol=0.05)
    return [torch.where(free, want, out)], expected


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_on_the_cpu(builder: KernelBuilder, name: str) -> None:
    """Where the reference has NaN or infinities, and nowhere else."""
    for kernel in build(builder, requests(CASES[name], CPU)):
        check(kernel, CASES[name])


@pytest.fixture(scope="module")
def gpu_kernels(builder: KernelBuilder) -> dict[str, list[BuiltKernel]]:
    """Every case's kernels on this machine's GPU, built side by side."""
    target = gpu_target()
    wanted = {name: requests(CASES[name], target) for name in NAMES}
    built = {kernel.request: kernel for kernel in build(builder, [r for each in wanted.values() for r in each])}
    return {name: [built[request] for request in each] for name, each in wanted.items()}


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_on_the_gpu(gpu_kernels: dict[str, list[BuiltKernel]], name: str) -> None:
    """As on the CPU, for a configuration of each kind."""
    if not gpu_kernels[name]:
        pytest.skip("no kernel on this GPU")
    for kernel in gpu_kernels[name]:
        check(kernel, CASES[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize(("left", "right"), [(math.inf, 3.0), (3.0, -math.inf), (math.inf, math.inf), (math.inf, 0.0)])
def test_float32_sums_with_infinity_are_those_of_float32(
    builder: KernelBuilder, layout: Literal["nk", "kn"], left: float, right: float
) -> None:
    """All of a tile's, in every configuration, beside numbers that are small, exact, or zero."""
    for kernel in build(builder, gpu_requests("matmul", MatmulParameters(160, 96, "float32", layout))):
        generator = torch.Generator("cuda").manual_seed(0)
        a = torch.randint(-3, 4, (200, 96), device="cuda", generator=generator).float()
        b = torch.randint(-3, 4, (160, 96) if layout == "nk" else (96, 160), device="cuda", generator=generator).float()
        a[5, 7], a[70:75, 90], a[150] = left, -left, left
        b[(9, 7) if layout == "nk" else (7, 9)] = right
        expected = a.double() @ (b.mT if layout == "nk" else b).double()
        (out,) = call(kernel, [a, b], {"m": 200})
        assert expected.isinf().any() and expected.isnan().any()
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["swiglu, a scale per token", "swiglu, a scale per block"])
def test_scales_come_from_maxima_that_keep_nan(name: str) -> None:
    """The hardware's other maximum, which ``max`` is in CUDA, returns the number beside NaN."""
    (request, *_) = requests(CASES[name], HOPPER)
    source = cuda_source(request)
    assert "max.ftz.NaN.f32" in source and "tkc_nan_max(amax" in source
    assert "= max(" not in source and "fmaxf" not in source


@pytest.mark.parametrize("name", ["quantized rms, a scale per token", "quantized rms, a scale per group"])
def test_magnitudes_are_compared_as_integers(name: str) -> None:
    """Which keeps NaN above infinity."""
    (request, *_) = requests(CASES[name], HOPPER)
    source = cuda_source(request)
    assert " int largest[1]" in source and "largest[0] = max(largest[0], " in source and "fmaxf" not in source
