"""The weighted sum of a token's rows agrees with the reference, with and without weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_combine.reference import moe_combine

CASES = {
    "weighted": MoeCombineParameters(768, 8, "bfloat16", "bfloat16"),
    "wide-weights": MoeCombineParameters(200, 2, "float16", "float32"),
    "plain-odd": MoeCombineParameters(33, 3, "float32", indices_dtype="int32"),
    "one": MoeCombineParameters(64, 1, "bfloat16", "float32"),
    "weights-by-token": MoeCombineParameters(264, 4, "bfloat16", "float32", weight_order="tokens"),
}
TOKENS = (0, 1, 17, 129)


def inputs_for(parameters: MoeCombineParameters, tokens: int, seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
    """Rows in the order of a random permutation, as sorting by expert leaves them."""
    generator = torch.Generator().manual_seed(seed)
    copies = tokens * parameters.top_k
    rows = torch.randn(copies, parameters.channels, generator=generator)
    positions = torch.randperm(copies, generator=generator).reshape(tokens, parameters.top_k)
    inputs = [
        rows.to(getattr(torch, parameters.dtype)),
        positions.to(getattr(torch, parameters.indices_dtype)),
    ]
    if parameters.weight_dtype is not None:
        weights = torch.rand(copies, generator=generator).to(getattr(torch, parameters.weight_dtype))
        inputs.append(weights if parameters.weight_order == "rows" else weights.reshape(positions.shape))
    return [tensor.to(device) for tensor in inputs]


def assert_agrees(kernel: BuiltKernel, inputs: list[torch.Tensor]) -> None:
    """To the rounding of the result."""
    (out,) = kernel(*inputs)
    rounding = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out, moe_combine(kernel.request.parameters, *inputs), rtol=2 * rounding, atol=1e-5)


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: MoeCombineParameters) -> None:
    """One build serves every number of tokens."""
    kernel = build_for(builder, "moe.combine", parameters)
    for tokens in TOKENS:
        assert_agrees(kernel, inputs_for(parameters, tokens))


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(1, 40), beyond=st.sampled_from([-(2**40), -1, 2**40]), seed=st.integers(0, 2**16))
def test_no_position_reads_outside(builder: KernelBuilder, tokens: int, beyond: int, seed: int) -> None:
    """One beyond the rows means the last of them, one below zero the first."""
    parameters = CASES["wide-weights"]
    rows, positions, weights = inputs_for(parameters, tokens, seed)
    positions[tokens // 2, 0] = beyond
    assert_agrees(build_for(builder, "moe.combine", parameters), [rows, positions, weights])


@pytest.mark.parametrize(
    ("parameters", "target", "reason"),
    [
        (MoeCombineParameters(0, 2, "float32"), "cpu", "at least one"),
        (MoeCombineParameters(64, 64, "bfloat16"), "cuda:sm_90a", "64 rows at a time"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: MoeCombineParameters, target: str, reason: str) -> None:
    """With a reason that names what is wrong."""
    assert reason in (SPECS["moe.combine"].unsupported(parameters, Target.parse(target)) or "")


@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "case"), [("sm_80", "plain-odd"), ("sm_90a", "weighted")])
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed."""
    assert build_for(builder, "moe.combine", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [None, 2048, 7168], ids=["own", "2048", "7168"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, case: str, channels: int | None) -> None:
    """The case's own channels, and those of large models."""
    parameters = CASES[case] if channels is None else dataclasses.replace(CASES[case], channels=channels)
    for kernel in build(builder, gpu_requests("moe.combine", parameters)):
        for tokens in (*TOKENS, 4097):
            assert_agrees(kernel, inputs_for(parameters, tokens, device="cuda"))
