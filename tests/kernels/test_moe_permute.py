"""The counting sort is the stable sort, its inverse, and the ends of the experts' copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.moe_permute.reference import moe_permute

CASES = {
    "one": MoePermuteParameters(1),
    "mixtral": MoePermuteParameters(8, "int32"),
    "odd": MoePermuteParameters(129),
    "qwen3-moe": MoePermuteParameters(128, top_k=8),
    "triples": MoePermuteParameters(60, "int32", top_k=3),
    "many": MoePermuteParameters(512, "int32"),
}


def assert_sorts(kernel: BuiltKernel, experts: torch.Tensor) -> None:
    """All outputs are the reference's, exactly."""
    outputs = SPECS["moe.permute"].outputs(kernel.request.parameters)
    expected = moe_permute(kernel.request.parameters, experts)
    for output, actual, wanted in zip(outputs, kernel(experts), expected, strict=True):
        assert torch.equal(actual, wanted), f"{output.name} differs for {len(experts)} copies"


def random_experts(parameters: MoePermuteParameters, copies: int, device: str = "cpu") -> torch.Tensor:
    """Uniformly distributed expert ids."""
    generator = torch.Generator().manual_seed(copies)
    experts = torch.randint(0, parameters.num_experts, (copies,), generator=generator)
    return experts.to(device, getattr(torch, parameters.indices_dtype))


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: MoePermuteParameters) -> None:
    """One build serves every number of copies."""
    kernel = build_for(builder, "moe.permute", parameters)
    for copies in (0, 1, 17, 4097):
        assert_sorts(kernel, random_experts(parameters, copies))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 5, 7]), max_size=200))
def test_any_list_is_sorted(builder: KernelBuilder, experts: list[int]) -> None:
    """Few experts with many copies each, and some with none."""
    assert_sorts(build_for(builder, "moe.permute", CASES["mixtral"]), torch.tensor(experts, dtype=torch.int32))


def test_what_cannot_be_counted_is_refused() -> None:
    """No experts anywhere, and on CUDA more than shared memory counts."""
    spec, cuda = SPECS["moe.permute"], Target.parse("cuda:sm_90a")
    assert "at least one" in (spec.unsupported(MoePermuteParameters(0), Target.parse("cpu")) or "")
    assert "top_k is 0" in (spec.unsupported(MoePermuteParameters(8, top_k=0), Target.parse("cpu")) or "")
    assert "shared memory" in (spec.unsupported(MoePermuteParameters(4096), cuda) or "")
    assert spec.unsupported(MoePermuteParameters(512), cuda) is None


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "case"), [("sm_90a", "many"), ("sm_120", "odd")])
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed."""
    assert build_for(builder, "moe.permute", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, parameters: MoePermuteParameters) -> None:
    """Evenly spread copies, and all copies with one expert."""
    for kernel in build(builder, gpu_requests("moe.permute", parameters)):
        for copies in (0, 1, 17, 4097, 32768, 524288, 3_000_001):
            experts = random_experts(parameters, copies, "cuda")
            assert_sorts(kernel, experts)
            assert_sorts(kernel, torch.full_like(experts, parameters.num_experts - 1))
