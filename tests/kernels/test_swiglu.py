"""SwiGLU's kernels agree with the reference, plain and with every kind of scale."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.reference import swiglu

CASES = {
    "plain": SwiGLUParameters(768, "float32"),
    "plain-packed": SwiGLUParameters(200, "bfloat16", packed=True),
    "plain-half-odd": SwiGLUParameters(33, "float16", packed=True),
    "token": SwiGLUParameters(1000, "bfloat16", packed=True, scale="token"),
    "token-power-of-two": SwiGLUParameters(64, "float16", scale="token", power_of_two_scales=True),
    "group": SwiGLUParameters(768, "bfloat16", packed=True, scale="group"),
    "group-odd": SwiGLUParameters(201, "float32", scale="group", quantized_dtype="float8_e5m2"),
    "block": SwiGLUParameters(200, "bfloat16", packed=True, scale="block", power_of_two_scales=True),
    "block-wide": SwiGLUParameters(384, "float32", scale="block", quantized_dtype="float8_e5m2"),
    "channel": SwiGLUParameters(520, "bfloat16", packed=True, scale="channel"),
    "channel-odd": SwiGLUParameters(33, "float32", scale="channel", power_of_two_scales=True),
}
TOKENS = (0, 1, 17, 129, 300)


def inputs_for(parameters: SwiGLUParameters, tokens: int, seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
    """Normally distributed gate and up, or both in one."""
    generator = torch.Generator().manual_seed(seed)
    halves = 2 if parameters.packed else 1
    shape = (tokens, halves * parameters.channels)
    dtype = getattr(torch, parameters.dtype)
    return [(3 * torch.randn(shape, generator=generator)).to(device, dtype) for _ in range(3 - halves)]


def call(kernel: BuiltKernel, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The kernel's outputs."""
    return kernel(*inputs, token_blocks=-(-inputs[0].shape[0] // QUANTIZATION_BLOCK))


def assert_agrees(parameters: SwiGLUParameters, inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> None:
    """Equal to rounding; of FP8 codes one in a thousand may be the next one."""
    expected = swiglu(parameters, *inputs)
    if parameters.scale is None:
        torch.testing.assert_close(outputs[0], expected[0])
        return
    torch.testing.assert_close(outputs[1], expected[1], rtol=2e-6, atol=0)
    codes, expected_codes = (tensor.view(torch.uint8).int() for tensor in (outputs[0], expected[0]))
    # Both zeros are zero, and codes of one sign follow each other as their values do.
    apart = torch.where((codes & 0x7F == 0) & (expected_codes & 0x7F == 0), 0, (codes - expected_codes).abs())
    assert apart.numel() == 0 or apart.max() <= 1
    assert (apart > 0).sum() <= apart.numel() // 1000 + 1


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: SwiGLUParameters) -> None:
    """One build serves every number of tokens."""
    kernel = build_for(builder, "swiglu", parameters)
    for tokens in TOKENS:
        inputs = inputs_for(parameters, tokens)
        assert_agrees(parameters, inputs, call(kernel, inputs))


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(["plain-packed", "group", "block", "channel"]),
    tokens=st.integers(0, 200),
    magnitude=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_agrees_at_any_magnitude(builder: KernelBuilder, case: str, tokens: int, magnitude: float, seed: int) -> None:
    """All zeros, values below the smallest amax, and gates where the exponential overflows."""
    inputs = [magnitude * tensor for tensor in inputs_for(CASES[case], tokens, seed)]
    assert_agrees(CASES[case], inputs, call(build_for(builder, "swiglu", CASES[case]), inputs))


@pytest.mark.parametrize("quantized", FP8_MAX)
def test_rounds_every_fp8_number_to_nearest_even(builder: KernelBuilder, quantized: str) -> None:
    """With a scale of one, numbers, the middles between them and their neighbours become what PyTorch makes of them."""
    dtype = getattr(torch, quantized)
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()]
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = [torch.nextafter(middles, middles + side) for side in (-1.0, 1.0)]
    values = torch.cat([numbers, middles, *around])
    values = torch.cat([values, -values])
    groups = values.split(QUANTIZATION_BLOCK - 1)
    rows = [torch.cat([group, group.new_tensor([FP8_MAX[quantized]])]) for group in groups]
    values = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    parameters = SwiGLUParameters(values.shape[1], "float32", scale="group", quantized_dtype=quantized)
    gate = torch.full_like(values, 32.0)  # so large that silu(gate) is gate
    out, scales = call(build_for(builder, "swiglu", parameters), [gate, values / 32.0])
    assert torch.equal(scales, torch.ones_like(scales))
    assert torch.equal(out.view(torch.uint8), values.to(dtype).view(torch.uint8))


@pytest.mark.parametrize("case", ["token", "group", "block", "channel", "token-power-of-two"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scales_are_pytorchs_where_a_value_is_not_finite(builder: KernelBuilder, case: str, value: float) -> None:
    """NaN makes its scale NaN and all that share it; infinity makes an infinite scale, and is NaN itself."""
    parameters = CASES[case]
    inputs = inputs_for(parameters, 20)
    inputs[0][3, 4] = value
    out, scales = call(build_for(builder, "swiglu", parameters), inputs)
    expected, expected_scales = swiglu(parameters, *inputs)
    torch.testing.assert_close(scales, expected_scales, rtol=2e-6, atol=0, equal_nan=True)
    torch.testing.assert_close(scales[~scales.isfinite()].abs(), torch.tensor([value]), equal_nan=True)
    assert torch.equal(out.float().isnan(), expected.float().isnan())


def test_the_reference_has_the_scales_that_pytorch_computes() -> None:
    """As a model writes them, for the values that are not numbers too."""
    parameters = SwiGLUParameters(4, "float32", scale="token", power_of_two_scales=True)
    gate = torch.tensor([[1.0, 2, 3, 4], [1, torch.nan, 3, 4], [1, torch.inf, 3, 4], [0, 0, 0, 0]])
    values = torch.nn.functional.silu(gate) * gate
    scales = torch.exp2(torch.ceil(torch.log2(values.abs().amax(-1).clamp(min=1e-4) / 448)))
    quantized = (values / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    out, found = swiglu(parameters, gate, gate)
    torch.testing.assert_close(found, scales, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(out.float(), quantized.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("parameters", "target", "reason"),
    [
        (SwiGLUParameters(0, "float32"), "cpu", "at least one"),
        (SwiGLUParameters(8, "float32", scale="token", minimum_amax=0.0), "cpu", "minimum_amax is 0.0"),
        (SwiGLUParameters(70000, "float32", scale="token"), "cuda:sm_90a", "70000 channels"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: SwiGLUParameters, target: str, reason: str) -> None:
    """With a reason that names what is wrong."""
    assert reason in (SPECS["swiglu"].unsupported(parameters, Target.parse(target)) or "")


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "case"), [("sm_80", "group-odd"), ("sm_89", "channel"), ("sm_90a", "block")])
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed; the first architecture has no FP8 instructions."""
    assert build_for(builder, "swiglu", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [None, 7168], ids=["own-channels", "7168-channels"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, case: str, channels: int | None) -> None:
    """The case's own channels, and those of a large model."""
    parameters = CASES[case] if channels is None else dataclasses.replace(CASES[case], channels=channels)
    for kernel in build(builder, gpu_requests("swiglu", parameters)):
        for tokens in (*TOKENS, 4097):
            inputs = inputs_for(parameters, tokens, device="cuda")
            assert_agrees(parameters, inputs, call(kernel, inputs))
        for magnitude in (0.0, 1e-3, 30.0):  # where the exponential overflows
            inputs = [magnitude * tensor for tensor in inputs_for(parameters, 129, device="cuda")]
            assert_agrees(parameters, inputs, call(kernel, inputs))
