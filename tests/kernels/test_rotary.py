"""Rotary position embedding agrees with the reference: both layouts, either kind of angles, keys, normalized heads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.rotary.reference import rotary

CASES = {
    "bshd": RotaryParameters(4, 64, "bfloat16"),
    "bhsd": RotaryParameters(3, 128, "float16", "bhsd"),
    "odd-half": RotaryParameters(2, 30, "float32"),
    "own-angles": RotaryParameters(2, 64, "bfloat16", angle_dtype="float32", shared_angles=False),
    "one-pair": RotaryParameters(5, 2, "bfloat16", "bhsd"),
    "neighbours": RotaryParameters(8, 64, "bfloat16", key_heads=2, angle_dtype="float32", pairs="neighbours"),
    "neighbours-odd": RotaryParameters(2, 30, "float16", "bhsd", epsilon=1e-6, weight=True, pairs="neighbours"),
    "one-neighbour": RotaryParameters(3, 2, "float32", pairs="neighbours"),
    "partial": RotaryParameters(4, 80, "bfloat16", key_heads=2, turned=32),
    "partial-bhsd": RotaryParameters(3, 64, "float32", "bhsd", turned=16),
    "partial-odd": RotaryParameters(3, 30, "bfloat16", turned=6, pairs="neighbours"),
    "partial-one-pair": RotaryParameters(3, 65, "float16", turned=2),
    "keys": RotaryParameters(8, 128, "bfloat16", key_heads=2),
    "keys-bhsd": RotaryParameters(3, 64, "float16", "bhsd", key_heads=3, shared_angles=False),
    "normalized": RotaryParameters(8, 128, "bfloat16", key_heads=1, epsilon=1e-6, weight=True),
    "normalized-one-tensor": RotaryParameters(5, 64, "float16", "bhsd", epsilon=1e-5),
    "normalized-wide-weight": RotaryParameters(
        4, 256, "bfloat16", key_heads=1, epsilon=1e-6, weight=True, weight_dtype="float32"
    ),
    # Their vectors are no power of two: some threads have none.
    "normalized-96": RotaryParameters(3, 96, "bfloat16", key_heads=1, epsilon=1e-6, weight=True),
    "normalized-odd-half": RotaryParameters(2, 30, "float32", key_heads=3, epsilon=1e-6, weight=True),
}
SIZES = ((1, 1), (2, 17), (3, 129), (0, 5), (2, 0))


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
    for out, expected in zip(kernel(*inputs), rotary(kernel.request.parameters, *inputs), strict=True):
        rounding = torch.finfo(out.dtype).eps
        # A difference of two products may be a fused operation, which rounds only one of them. Squares may be added in
        # another order.
        atol = 8 * rounding + 64 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(out, expected, rtol=2 * rounding, atol=atol)


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: RotaryParameters) -> None:
    """One build serves every batch and sequence."""
    kernel = build_for(builder, "rotary", parameters)
    for sizes in SIZES:
        assert_agrees(kernel, inputs_for(parameters, *sizes))


@settings(max_examples=20, deadline=None)
@given(
    case=st.sampled_from(["bshd", "bhsd", "own-angles", "normalized"]),
    batch=st.integers(1, 4),
    sequence=st.integers(1, 40),
)
def test_agrees_at_any_size(builder: KernelBuilder, case: str, batch: int, sequence: int) -> None:
    """With other values each time."""
    assert_agrees(build_for(builder, "rotary", CASES[case]), inputs_for(CASES[case], batch, sequence))


def test_the_reference_normalizes_before_it_turns() -> None:
    """By the formulas of both, written out in float64."""
    parameters = RotaryParameters(2, 8, "float32", key_heads=1, epsilon=0.25, weight=True)
    inputs = inputs_for(parameters, 2, 3)
    x, cos, sin, weight, keys, key_weight = (tensor.double() for tensor in inputs)
    for found, heads, scale in zip(rotary(parameters, *inputs), (x, keys), (weight, key_weight), strict=True):
        normalized = heads / (heads.square().mean(-1, keepdim=True) + 0.25).sqrt() * scale
        crossed = torch.cat([-normalized[..., 4:], normalized[..., :4]], -1)
        expected = normalized * cos[:, None] + crossed * sin[:, None]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


REFUSED = {
    "no halves of 0": (RotaryParameters(2, 0, "float32"), "cpu", "no halves"),
    "no halves of 1": (RotaryParameters(2, 1, "float32"), "cpu", "no halves"),
    "no halves of 33": (RotaryParameters(2, 33, "float32"), "cpu", "no halves"),
    "turned beyond the head": (RotaryParameters(2, 32, "float32", turned=34), "cpu", "no pairs"),
    "half a pair": (RotaryParameters(2, 32, "float32", turned=7), "cpu", "no pairs"),
    "normalized in part": (RotaryParameters(2, 32, "float32", epsilon=1e-6, turned=16), "cpu", "as a whole"),
    "a weight of nothing": (RotaryParameters(2, 32, "float32", weight=True), "cpu", "no epsilon"),
    "too large": (RotaryParameters(2, 66, "float32", epsilon=1e-6), "cuda:sm_90a", "too large to normalize"),
}


@pytest.mark.parametrize(("parameters", "target", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(parameters: RotaryParameters, target: str, reason: str) -> None:
    """With a reason that says so."""
    found = SPECS["rotary"].unsupported(parameters, Target.parse(target))
    assert found is not None and reason in found


def test_what_is_too_large_to_normalize_can_be_turned() -> None:
    """Threads that need not add up squares may be more than a warp."""
    assert SPECS["rotary"].unsupported(RotaryParameters(2, 66, "float32"), Target.parse("cuda:sm_90a")) is None


def test_parameters_from_before_there_were_keys() -> None:
    """Are those of one tensor, as it is."""
    parameters, target = CASES["bshd"], Target.parse("cuda:sm_90a")
    request = KernelRequest("rotary", parameters, SPECS["rotary"].configurations(parameters, target)[0], target)
    data = request.to_json()
    for name in ("key_heads", "epsilon", "weight", "weight_dtype"):
        del data["parameters"][name]
    assert KernelRequest.from_json(data) == request


def test_work_counts_each_tensor_once() -> None:
    """Read, or written; weights and angles are read once."""
    parameters = dataclasses.replace(CASES["normalized"], dtype="float32")
    work = SPECS["rotary"].work(parameters, {"batch": 2, "sequence": 5})
    values = 2 * 5 * 9 * 128
    assert work.bytes == 4 * (2 * values + 2 * 5 * 128 + 2 * 128) and work.flops == 7 * values


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "case"),
    [
        ("sm_80", "own-angles"),
        ("sm_89", "normalized-wide-weight"),
        ("sm_90a", "normalized"),
        ("sm_120", "normalized-96"),
    ],
)
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


@pytest.mark.gpu
def test_more_sequences_than_a_grid_has_places_for(builder: KernelBuilder) -> None:
    """The second axis of a grid ends at 65,535."""
    parameters = RotaryParameters(2, 16, "float16", key_heads=1)
    for kernel in build(builder, gpu_requests("rotary", parameters)):
        assert_agrees(kernel, inputs_for(parameters, 65_537, 1, device="cuda"))
