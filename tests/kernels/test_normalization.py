"""The normalization kernels agree with the reference: both kinds, with and without each optional tensor."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target, TensorType
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.normalization.reference import normalization

CASES = {
    "rms": NormalizationParameters(256, "bfloat16", "rms", 1e-6),
    "rms-head": NormalizationParameters(128, "float16", "rms", 1e-5, weight=False),
    "rms-sum": NormalizationParameters(520, "bfloat16", "rms", 1e-6, residual=True, keeps_sum=True),
    "rms-wide-weight": NormalizationParameters(64, "bfloat16", "rms", 1e-6, parameter_dtype="float32"),
    "layer": NormalizationParameters(768, "float32", "layer", 1e-12, bias=True),
    "layer-odd": NormalizationParameters(201, "float16", "layer", 1e-5, bias=True, residual=True),
    "layer-plain": NormalizationParameters(33, "float32", "layer", 1e-5, weight=False),
    "layer-one-channel": NormalizationParameters(1, "bfloat16", "layer", 1e-5),
    "combined": NormalizationParameters(
        520,
        "bfloat16",
        "rms",
        1e-6,
        residual=True,
        keeps_sum=True,
        combined=MoeCombineParameters(520, 8, "bfloat16", "bfloat16", weight_order="tokens"),
    ),
    "combined-alone": NormalizationParameters(
        201,
        "float32",
        "layer",
        1e-5,
        bias=True,
        combined=MoeCombineParameters(201, 3, "float32", "float32", "int32"),
    ),
}
TOKENS = (0, 1, 17, 129, 300)


def inputs_for(
    parameters: NormalizationParameters, tokens: int, seed: int = 0, device: str = "cpu"
) -> list[torch.Tensor]:
    """Normally distributed, off zero so that a mean left in would show; positions as sorting by expert leaves them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"tokens": tokens, "copies": tokens * parameters.combined.top_k if parameters.combined else 0}

    def values(tensor: TensorType) -> torch.Tensor:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
        if tensor.name == "positions":
            return torch.randperm(sizes["copies"], generator=generator).reshape(shape)
        return 1 + torch.randn(shape, generator=generator)

    return [values(t).to(device, getattr(torch, t.dtype)) for t in SPECS["normalization"].inputs(parameters)]


def assert_agrees(kernel: BuiltKernel, inputs: list[torch.Tensor]) -> None:
    """To the rounding of the result; sums of two tensors to the bit."""
    parameters = kernel.request.parameters
    outputs, expected = kernel(*inputs), normalization(parameters, *inputs)
    rounding = 2 * torch.finfo(outputs[0].dtype).eps
    # Rows may be added up in another order, by which a sum may be rounded the other way.
    slack = 1e-5 if parameters.combined is None else max(1e-5, rounding)
    torch.testing.assert_close(outputs[0], expected[0], rtol=rounding, atol=slack)
    if parameters.combined is not None and parameters.keeps_sum:
        torch.testing.assert_close(outputs[1], expected[1], rtol=rounding, atol=slack)
    elif parameters.keeps_sum:
        assert torch.equal(outputs[1], expected[1])


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: NormalizationParameters) -> None:
    """One build serves every number of tokens."""
    kernel = build_for(builder, "normalization", parameters)
    for tokens in TOKENS:
        assert_agrees(kernel, inputs_for(parameters, tokens))


@settings(max_examples=20, deadline=None)
@given(case=st.sampled_from(["rms-sum", "layer"]), tokens=st.integers(0, 64), seed=st.integers(0, 2**16))
def test_agrees_at_any_number_of_tokens(builder: KernelBuilder, case: str, tokens: int, seed: int) -> None:
    """With other values each time."""
    assert_agrees(build_for(builder, "normalization", CASES[case]), inputs_for(CASES[case], tokens, seed))


@pytest.mark.parametrize("case", ["rms-sum", "layer"])
def test_a_row_of_zeros_is_divided_by_the_epsilon(builder: KernelBuilder, case: str) -> None:
    """And one of numbers that are small beside it by little more."""
    parameters = CASES[case]
    inputs = inputs_for(parameters, 3)
    activations = [i for i, tensor in enumerate(inputs) if tensor.ndim == 2]
    for i in activations:
        inputs[i][0] = 0
        inputs[i][1] *= parameters.epsilon**0.5
    assert_agrees(build_for(builder, "normalization", parameters), inputs)


def test_is_not_misled_by_a_large_mean(builder: KernelBuilder) -> None:
    """The variance is that of what is left when the mean is off, not a difference of two large numbers."""
    parameters = CASES["layer"]
    x, weight, bias = inputs_for(parameters, 3)
    (out,) = build_for(builder, "normalization", parameters)(x + 1000, weight, bias)
    exact = torch.nn.functional.layer_norm((x + 1000).double(), (768,), weight.double(), bias.double(), 1e-12)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("parameters", "target", "reason"),
    [
        (NormalizationParameters(0, "float32", "rms", 1e-6), "cpu", "at least one"),
        (NormalizationParameters(8, "float32", "rms", 1e-6, keeps_sum=True), "cpu", "no residual"),
        (NormalizationParameters(70000, "float32", "rms", 1e-6), "cuda:sm_90a", "70000 channels"),
        (
            NormalizationParameters(8, "float32", "rms", 1e-6, combined=MoeCombineParameters(16, 2, "float32")),
            "cpu",
            "the rows have 16 channels",
        ),
        (
            NormalizationParameters(64, "bfloat16", "rms", 1e-6, combined=MoeCombineParameters(64, 64, "bfloat16")),
            "cuda:sm_90a",
            "64 rows at a time",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: NormalizationParameters, target: str, reason: str) -> None:
    """With a reason that names what is wrong."""
    assert reason in (SPECS["normalization"].unsupported(parameters, Target.parse(target)) or "")


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "case"), [("sm_80", "rms-sum"), ("sm_90a", "layer-odd"), ("sm_90a", "combined"), ("sm_120", "rms-head")]
)
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed."""
    assert build_for(builder, "normalization", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [None, 4096, 7168], ids=["own", "4096", "7168"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, case: str, channels: int | None) -> None:
    """The case's own channels, and those of large models."""
    parameters = CASES[case]
    if channels is not None:
        combined = parameters.combined and dataclasses.replace(parameters.combined, channels=channels)
        parameters = dataclasses.replace(parameters, channels=channels, combined=combined)
    for kernel in build(builder, gpu_requests("normalization", parameters)):
        for tokens in (*TOKENS, 4097):
            assert_agrees(kernel, inputs_for(parameters, tokens, device="cuda"))
