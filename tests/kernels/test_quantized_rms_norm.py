"""Quantized RMS normalization agrees with the reference: every kind of scale, with and without optional tensors."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target, TensorType
from tkc.kernels.fp8 import FP8_MAX
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.quantized_rms_norm.reference import quantized_rms_norm

NAME = "quantized_rms_norm"
TOKENS = (0, 1, 17, 129)
_SLACK = 4e-6
"""What float32 may get wrong of a quotient, relative to it: the mean's rounding and four more."""
CASES = {
    "token": QuantizedRMSNormParameters(520, "bfloat16", 1e-6, "token", "bfloat16", residual=True, keeps_sum=True),
    "token-odd": QuantizedRMSNormParameters(201, "float16", 1e-5, "token", "float32", weight_offset=True),
    "token-one-channel": QuantizedRMSNormParameters(1, "bfloat16", 1e-5, "token"),
    "token-unbounded": QuantizedRMSNormParameters(72, "float32", 1e-5, "token", "float32", minimum_amax=0.0),
    "group": QuantizedRMSNormParameters(384, "bfloat16", 1e-6, "group", "bfloat16", residual=True, keeps_sum=True),
    "group-power-of-two": QuantizedRMSNormParameters(
        128, "float32", 1e-6, "group", power_of_two_scales=True, minimum_amax=1e-12
    ),
    "group-unbounded": QuantizedRMSNormParameters(
        256, "float16", 1e-6, "group", "float16", minimum_amax=0.0, quantized_dtype="float8_e5m2"
    ),
    "tensor": QuantizedRMSNormParameters(264, "bfloat16", 1e-6, "tensor", "bfloat16", residual=True),
    "tensor-reciprocal": QuantizedRMSNormParameters(
        136, "float32", 1e-6, "tensor", "float32", weight_offset=True, reciprocal=True
    ),
}


def inputs_for(
    parameters: QuantizedRMSNormParameters, tokens: int, seed: int = 0, device: str = "cpu"
) -> list[torch.Tensor]:
    """Normally distributed, with a few large values, and a scale that leaves some to be clamped."""
    generator = torch.Generator().manual_seed(seed)

    def values(tensor: TensorType) -> torch.Tensor:
        shape = [tokens if isinstance(dim, str) else dim for dim in tensor.shape]
        if tensor.name == "static_scale":
            step = torch.rand(shape, generator=generator) * 0.01 + 0.005
            return 1 / step if parameters.reciprocal else step
        normal = torch.randn(shape, generator=generator)
        return normal if tensor.name == "weight" else normal * (1 + 9 * (normal > 2))

    return [values(t).to(device, getattr(torch, t.dtype)) for t in SPECS[NAME].inputs(parameters)]


def named(parameters: QuantizedRMSNormParameters, outputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """The outputs by the names that the spec gives them."""
    return {t.name: out for t, out in zip(SPECS[NAME].outputs(parameters), outputs, strict=True)}


def assert_agrees(kernel: BuiltKernel, inputs: list[torch.Tensor]) -> None:
    """Sums to the bit; scales to the rounding of the mean; FP8 codes but where float32 cannot tell which is nearer.

    Without a weight, numbers of 16 bits over the largest of them often lie halfway between two codes.
    """
    p = kernel.request.parameters
    found, expected = named(p, kernel(*inputs)), named(p, quantized_rms_norm(p, *inputs))
    if p.keeps_sum:
        assert torch.equal(found["sum"], expected["sum"])
    if "scales" in expected and p.power_of_two_scales:
        steps = (found["scales"] / expected["scales"]).log2()
        assert steps.numel() == 0 or (steps.abs().max() <= 1 and (steps != 0).sum() <= steps.numel() // 100 + 1)
    elif "scales" in expected:
        torch.testing.assert_close(found["scales"], expected["scales"], rtol=2e-5, atol=0, equal_nan=True)
    codes, wanted = found["out"], expected["out"]
    assert torch.equal(codes.float().isnan(), wanted.float().isnan())
    if p.power_of_two_scales:
        same_scale = (found["scales"] == expected["scales"]).repeat_interleave(128, -1)
        codes, wanted = codes[same_scale], wanted[same_scale]
    numbers, wanted_numbers = (tensor.view(torch.uint8).int() for tensor in (codes, wanted))
    # Both zeros are zero, and codes of one sign follow each other as their values do; what is NaN has been compared.
    same = ((numbers & 0x7F == 0) & (wanted_numbers & 0x7F == 0)) | wanted.float().isnan()
    apart = torch.where(same, 0, (numbers - wanted_numbers).abs())
    assert apart.numel() == 0 or apart.max() <= 1
    exact = quotients(p, inputs, expected.get("scales"))
    exact = exact[same_scale] if p.power_of_two_scales else exact
    halfway = (codes.double() + wanted.double()) / 2
    near = (exact - halfway).abs() <= _SLACK * halfway.abs()
    assert (near | (apart == 0)).all()


def quotients(p: QuantizedRMSNormParameters, inputs: list[torch.Tensor], scales: torch.Tensor | None) -> torch.Tensor:
    """What is rounded to FP8, in float64, for the reference's scales."""
    rest = iter(inputs)
    x = next(rest)
    if p.residual:
        x = (x.float() + next(rest).float()).to(x.dtype)
    y = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + p.epsilon)
    if p.weight_dtype is not None:
        weight = next(rest).double()
        y = y * (1.0 + weight if p.weight_offset else weight)
    if scales is None:
        static = next(rest).double()
        return y * static if p.reciprocal else y / static
    return (y.unflatten(-1, (-1, 128)) / scales[..., None]).view_as(y) if p.scale == "group" else y / scales[..., None]


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: QuantizedRMSNormParameters) -> None:
    """One build serves every number of tokens."""
    kernel = build_for(builder, NAME, parameters)
    for tokens in TOKENS:
        assert_agrees(kernel, inputs_for(parameters, tokens))


def test_many_numbers_halfway_between_two_codes(builder: KernelBuilder) -> None:
    """The largest is 1.75 times a power of two in each token, so that the quotients of others are short."""
    p = dataclasses.replace(CASES["token-one-channel"], channels=4096)
    x = inputs_for(p, 129)[0].clamp(-28, 28)
    x[:, 7] = 28.0
    assert_agrees(build_for(builder, NAME, p), [x])


@settings(max_examples=12, deadline=None)
@given(
    case=st.sampled_from(["token", "group", "group-unbounded", "tensor"]),
    tokens=st.integers(0, 64),
    magnitude=st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 2**16),
)
def test_agrees_at_any_magnitude(builder: KernelBuilder, case: str, tokens: int, magnitude: float, seed: int) -> None:
    """Zeros, values beside which the epsilon is large, and below the smallest amax."""
    p = CASES[case]
    inputs = inputs_for(p, tokens, seed)
    for nth, tensor in enumerate(SPECS[NAME].inputs(p)):
        if tensor.name in ("x", "residual"):
            inputs[nth] = inputs[nth] * magnitude
    assert_agrees(build_for(builder, NAME, p), inputs)


@pytest.mark.parametrize("case", ["token", "group"])
def test_zeros_have_the_smallest_scale(builder: KernelBuilder, case: str) -> None:
    """And stay zeros."""
    p = CASES[case]
    inputs = [tensor * 0 for tensor in inputs_for(p, 2)]
    outputs = named(p, build_for(builder, NAME, p)(*inputs))
    assert (outputs["out"].float() == 0).all()
    torch.testing.assert_close(outputs["scales"], torch.full_like(outputs["scales"], p.minimum_amax / 448))


@pytest.mark.parametrize("case", ["token-unbounded", "group-unbounded"])
def test_zeros_without_a_smallest_scale_are_divided_by_zero(builder: KernelBuilder, case: str) -> None:
    """As PyTorch's are: the scale is zero, the values are NaN, and those of other tokens are not."""
    p = CASES[case]
    inputs = inputs_for(p, 3)
    inputs[0][1] = 0
    outputs = named(p, build_for(builder, NAME, p)(*inputs))
    assert (outputs["scales"][1] == 0).all() and (outputs["scales"][::2] > 0).all()
    assert outputs["out"][1].float().isnan().all() and outputs["out"][::2].float().isfinite().all()


@pytest.mark.parametrize("case", ["token-unbounded", "group-unbounded"])
def test_scales_whose_reciprocal_overflows(builder: KernelBuilder, case: str) -> None:
    """Values as small as float32 has them are still divided by their scale."""
    p = dataclasses.replace(CASES[case], epsilon=1.0, weight_dtype="float32", dtype="float32")
    kernel = build_for(builder, NAME, p)
    inputs = inputs_for(p, 4)
    inputs[0] *= 1e-38
    assert 1 / named(p, quantized_rms_norm(p, *inputs))["scales"].max() == torch.inf
    found, expected = (named(p, f(*inputs)) for f in (kernel, lambda *tensors: quantized_rms_norm(p, *tensors)))
    # Subnormal scales have few bits.
    torch.testing.assert_close(found["scales"], expected["scales"], rtol=1e-2, atol=0)
    torch.testing.assert_close(found["out"].float(), expected["out"].float(), rtol=0.26, atol=0.5)


@pytest.mark.parametrize(("case", "value"), itertools.product(["token", "group", "tensor"], [torch.nan, torch.inf]))
def test_values_that_are_not_finite(builder: KernelBuilder, case: str, value: float) -> None:
    """NaN makes its whole token NaN, infinity too where the scale is dynamic; no other token is touched."""
    p = CASES[case]
    inputs = inputs_for(p, 5)
    inputs[0][3, 4] = value
    kernel = build_for(builder, NAME, p)
    found, expected = named(p, kernel(*inputs)), named(p, quantized_rms_norm(p, *inputs))
    assert torch.equal(found["out"].float().isnan(), expected["out"].float().isnan())
    whole = found["out"][3].float().isnan().float().mean()
    assert whole == 1 if case == "token" or value != value else 0 < whole < 1
    assert found["out"][[0, 1, 2, 4]].float().isfinite().all()


@pytest.mark.parametrize("quantized", FP8_MAX)
def test_a_static_scale_clamps_to_the_largest_number(builder: KernelBuilder, quantized: str) -> None:
    """Also infinity, and what a scale of zero makes of numbers."""
    p = QuantizedRMSNormParameters(64, "float32", 1e-6, "tensor", quantized_dtype=quantized)  # type: ignore[arg-type]
    kernel = build_for(builder, NAME, p)
    x = inputs_for(p, 3)[0].clamp(0.5, 2)
    x[1] *= -1
    for scale in (0.0, 1e-40, 1e-6, torch.inf):
        (out,) = kernel(x, torch.tensor([scale]))
        (expected,) = quantized_rms_norm(p, x, torch.tensor([scale]))
        assert torch.equal(out.float(), expected.float())
    (out,) = kernel(x, torch.tensor([1e-6]))
    assert out[0, 0].float() == FP8_MAX[p.quantized_dtype] == -out[1, 0].float()


def test_the_reference_is_what_models_write() -> None:
    """Scales and numbers of an ordinary quantization in PyTorch."""
    p = CASES["group"]
    x, residual, weight = inputs_for(p, 7)
    total = x + residual
    y = torch.nn.functional.rms_norm(total.float(), (p.channels,), weight.float(), p.epsilon)
    groups = y.view(7, -1, 128)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    out, scales, kept = quantized_rms_norm(p, x, residual, weight)
    assert torch.equal(kept, total)
    torch.testing.assert_close(scales, scale.squeeze(-1), rtol=1e-6, atol=0)
    assert ((groups / scale).to(torch.float8_e4m3fn).view_as(y).float() != out.float()).float().mean() < 0.005


@pytest.mark.parametrize(
    ("parameters", "target", "reason"),
    [
        (QuantizedRMSNormParameters(0, "float32", 1e-6, "token"), "cpu", "at least one"),
        (
            QuantizedRMSNormParameters(200, "float32", 1e-6, "group"),
            "cpu",
            "its 200 channels are no multiple of the 128",
        ),
        (QuantizedRMSNormParameters(8, "float32", 1e-6, "token", keeps_sum=True), "cpu", "no residual"),
        (QuantizedRMSNormParameters(8, "float32", 1e-6, "token", weight_offset=True), "cpu", "there is none"),
        (
            QuantizedRMSNormParameters(8, "float32", 1e-6, "token", power_of_two_scales=True, minimum_amax=0.0),
            "cpu",
            "minimum_amax is 0.0",
        ),
        (QuantizedRMSNormParameters(70000, "float32", 1e-6, "token"), "cuda:sm_90a", "70000 channels"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: QuantizedRMSNormParameters, target: str, reason: str) -> None:
    """With a reason that names what is wrong."""
    assert reason in (SPECS[NAME].unsupported(parameters, Target.parse(target)) or "")


@pytest.mark.parametrize("channels", [128, 2048, 4096, 5120, 7168, 8192, 65536])
@pytest.mark.parametrize("scale", ["token", "group", "tensor"])
def test_configurations_hold_a_token(channels: int, scale: str) -> None:
    """Every lane's values fit its registers, and a group lies in one warp."""
    p = QuantizedRMSNormParameters(channels, "bfloat16", 1e-6, scale, "bfloat16")  # type: ignore[arg-type]
    configurations = SPECS[NAME].configurations(p, Target.parse("cuda:sm_90a"))
    assert configurations
    for c in configurations:
        assert c.lanes & (c.lanes - 1) == 0 and c.threads % c.lanes == 0 and c.threads <= 1024
        assert c.lanes * 64 >= channels and (scale != "group" or c.lanes >= 16)


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "case"), [("sm_80", "group"), ("sm_89", "token-odd"), ("sm_90a", "tensor"), ("sm_120", "group-unbounded")]
)
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed; the first architecture has no FP8 instructions."""
    assert build_for(builder, NAME, CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [None, 4096, 7168], ids=["own", "4096", "7168"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, case: str, channels: int | None) -> None:
    """The case's own channels, and those of large models."""
    p = CASES[case] if channels is None else dataclasses.replace(CASES[case], channels=channels)
    for kernel in build(builder, gpu_requests(NAME, p)):
        for tokens in (*TOKENS, 4097):
            assert_agrees(kernel, inputs_for(p, tokens, device="cuda"))
        for magnitude in (0.0, 1e-3, 1e3):
            inputs = inputs_for(p, 129, device="cuda")
            assert_agrees(kernel, [inputs[0] * magnitude, *inputs[1:]])
