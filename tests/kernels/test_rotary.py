"""Rotary position embedding agrees with the reference, in both layouts and with angles of either kind."""

from __future__ import annotations

import pytest
import torch
from built_kernel import BuiltKernel, build, build_for, gpu_requests
from hypothesis import given, settings
from hypothesis import strategies as st

from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.rotary.reference import rotary
from tkc.kernels.rotary.spec import RotaryParameters

CASES = {
    "bshd": RotaryParameters(4, 64, "bfloat16"),
    "bhsd": RotaryParameters(3, 128, "float16", "bhsd"),
    "odd-half": RotaryParameters(2, 30, "float32"),
    "own-angles": RotaryParameters(2, 64, "bfloat16", angle_dtype="float32", shared_angles=False),
    "one-pair": RotaryParameters(5, 2, "bfloat16", "bhsd"),
}
SIZES = ((1, 1), (2, 17), (3, 129), (0, 5))


def inputs_for(parameters: RotaryParameters, batch: int, sequence: int, device: str = "cpu") -> list[torch.Tensor]:
    """Random heads and angles; the two halves have different angles, so that neither can stand for the other."""
    sizes = {"batch": batch, "sequence": sequence}
    generator = torch.Generator().manual_seed(batch + sequence)
    return [
        torch.randn([sizes.get(str(d), d) for d in t.shape], generator=generator).to(device, getattr(torch, t.dtype))
        for t in SPECS["rotary"].inputs(parameters)
    ]


def assert_agrees(kernel: BuiltKernel, inputs: list[torch.Tensor]) -> None:
    """To the rounding of the result."""
    (out,) = kernel(*inputs)
    rounding = torch.finfo(out.dtype).eps
    # A difference of two products may be a fused operation, which rounds only one of them.
    torch.testing.assert_close(out, rotary(kernel.request.parameters, *inputs), rtol=2 * rounding, atol=8 * rounding)


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: RotaryParameters) -> None:
    """One build serves every batch and sequence."""
    kernel = build_for(builder, "rotary", parameters)
    for sizes in SIZES:
        assert_agrees(kernel, inputs_for(parameters, *sizes))


@settings(max_examples=20, deadline=None)
@given(case=st.sampled_from(["bshd", "bhsd", "own-angles"]), batch=st.integers(1, 4), sequence=st.integers(1, 40))
def test_agrees_at_any_size(builder: KernelBuilder, case: str, batch: int, sequence: int) -> None:
    """With other values each time."""
    assert_agrees(build_for(builder, "rotary", CASES[case]), inputs_for(CASES[case], batch, sequence))


@pytest.mark.parametrize("size", [0, 1, 33])
def test_heads_without_halves_are_refused(size: int) -> None:
    """With a reason that says so."""
    reason = SPECS["rotary"].unsupported(RotaryParameters(2, size, "float32"), Target.parse("cpu"))
    assert reason is not None and "no halves" in reason


@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "case"), [("sm_80", "own-angles"), ("sm_90a", "bshd"), ("sm_120", "odd-half")])
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed."""
    assert build_for(builder, "rotary", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, case: str) -> None:
    """At odd sizes and long sequences."""
    for kernel in build(builder, gpu_requests("rotary", CASES[case])):
        for sizes in (*SIZES, (2, 4097)):
            assert_agrees(kernel, inputs_for(CASES[case], *sizes, device="cuda"))
