"""The gate's kernels choose what the reference chooses, for every way of scoring, grouping and weighing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, Target
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_gate.reference import moe_gate
from tkc.kernels.moe_gate.spec import ExpertLayout

MIXTRAL = MoeGateParameters(8, 2, "softmax", normalize=True)
QWEN3_MOE = MoeGateParameters(128, 8, "softmax", "bfloat16", normalize=True, weights_dtype="bfloat16")
DEEPSEEK_V3 = MoeGateParameters(
    256,
    8,
    "sigmoid",
    bias=True,
    num_groups=8,
    top_groups=4,
    excluded_rank="zero",
    normalize=True,
    epsilon=1e-20,
    scale=2.5,
)
CASES = {
    "mixtral": MIXTRAL,
    "qwen3-moe": QWEN3_MOE,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2": MoeGateParameters(160, 6, "softmax", "float16", num_groups=8, top_groups=3, scale=16.0),
    "softmax-256": MoeGateParameters(256, 8, "softmax", normalize=True),
    "excluding-groups": MoeGateParameters(
        256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4, normalize=True, epsilon=1e-20, scale=2.5
    ),
    "best-of-groups": MoeGateParameters(160, 6, "softmax", num_groups=8, top_groups=3, group_ranks=1),
    "groups-of-one": MoeGateParameters(16, 4, "sigmoid", bias=True, num_groups=16, top_groups=6, group_ranks=1),
    "top-1": MoeGateParameters(128, 1, "sigmoid"),
    "few-eligible": MoeGateParameters(64, 8, "sigmoid", num_groups=8, top_groups=2),
    "three-a-lane": MoeGateParameters(96, 40, "softmax"),
    "qwen2-moe": MoeGateParameters(60, 4, "softmax", indices_dtype="int32"),
    "sqrt-softplus": MoeGateParameters(384, 6, "sqrt_softplus", bias=True, normalize=True, scale=1.5),
    "epsilon": MoeGateParameters(64, 6, "softmax", normalize=True, epsilon=1e-2, weights_dtype="float16"),
    "odd": MoeGateParameters(7, 7, "sigmoid"),
    "wide": MoeGateParameters(512, 40, "sigmoid", "bfloat16", num_groups=16, top_groups=3),
}
SOME = [MIXTRAL, DEEPSEEK_V3, CASES["wide"]]
CPU = Target.parse("cpu")


def inputs_for(parameters: MoeGateParameters, tokens: int, seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
    """Normally distributed logits, and a bias if there is one."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, parameters.num_experts, generator=generator)
    bias = 0.1 * torch.randn(parameters.num_experts, generator=generator)
    tensors = [logits.to(getattr(torch, parameters.logits_dtype)), bias] if parameters.bias else [logits]
    return [tensors[0].to(getattr(torch, parameters.logits_dtype)).to(device), *(t.to(device) for t in tensors[1:])]


def assert_agrees(
    parameters: MoeGateParameters, inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...], exact: bool = False
) -> None:
    """The reference's experts and weights, but for a row in a thousand where scores differ by rounding alone.

    The reference is that of the CPU: on CUDA, torch.sort takes a NaN with the sign of a negative number, which rounding
    to bfloat16 can give it, for the smallest number of a short row.
    """
    weights, indices = (output.cpu() for output in outputs)
    expected_weights, expected_indices = moe_gate(parameters, *(tensor.cpu() for tensor in inputs))
    rows = (indices == expected_indices).all(-1)
    allowed = 0 if exact or parameters.ranks_logits else len(rows) // 1000
    assert (~rows).sum() <= allowed, f"rows {(~rows).nonzero().flatten().tolist()[:5]} choose other experts"
    torch.testing.assert_close(weights[rows], expected_weights[rows], equal_nan=True)


def awkward_logits(num_experts: int, tokens: int) -> dict[str, torch.Tensor]:
    """Logits that tie, come in order, or are infinite or NaN here and there, by what they are."""
    generator = torch.Generator().manual_seed(tokens)
    shape = (tokens, num_experts)
    random = torch.randn(shape, generator=generator)
    share = torch.rand(shape, generator=generator)
    ascending = (torch.arange(num_experts) / 64).expand(shape)
    return {
        "few levels": torch.randint(-1, 2, shape, generator=generator).float(),
        "equal": torch.ones(shape),
        "zeros of both signs": torch.where(share < 0.5, 0.0, -0.0),
        "ascending": ascending,
        "descending": -ascending,
        "mostly minus infinity": random.masked_fill(share < 0.9, -torch.inf),
        "all minus infinity": torch.full(shape, -torch.inf),
        "some NaN": random.masked_fill(share < 0.05, torch.nan),
        "all NaN": torch.full(shape, torch.nan),
    }


def assert_agrees_on_awkward_logits(kernel: BuiltKernel, parameters: MoeGateParameters, device: str) -> None:
    """Without a bias, so that equal logits have equal ranks; no choice is left to rounding."""
    bias = [torch.zeros(parameters.num_experts, device=device)] if parameters.bias else []
    for tokens in (1, 17):
        for logits in awkward_logits(parameters.num_experts, tokens).values():
            inputs = [logits.to(device, getattr(torch, parameters.logits_dtype)).contiguous(), *bias]
            assert_agrees(parameters, inputs, kernel(*inputs), exact=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_with_the_reference(builder: KernelBuilder, parameters: MoeGateParameters) -> None:
    """One build serves every number of tokens."""
    kernel = build_for(builder, "moe.topk_gate", parameters)
    for tokens in (0, 1, 17, 300):
        inputs = inputs_for(parameters, tokens)
        assert_agrees(parameters, inputs, kernel(*inputs))


@pytest.mark.daily(1)
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_on_awkward_logits(builder: KernelBuilder, parameters: MoeGateParameters) -> None:
    """Whatever ties, and whatever is no number."""
    assert_agrees_on_awkward_logits(build_for(builder, "moe.topk_gate", parameters), parameters, "cpu")


@pytest.mark.parametrize("parameters", SOME, ids=("mixtral", "deepseek-v3", "wide"))
@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(0, 40), levels=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_ties_go_to_the_smaller_index(
    builder: KernelBuilder, parameters: MoeGateParameters, tokens: int, levels: int, seed: int
) -> None:
    """Logits of few levels tie, and equal ones have equal scores, so that nothing is left to rounding."""
    logits = torch.randint(0, levels, (tokens, parameters.num_experts), generator=torch.Generator().manual_seed(seed))
    inputs = [logits.to(getattr(torch, parameters.logits_dtype))]
    if parameters.bias:
        inputs.append(torch.zeros(parameters.num_experts))
    assert_agrees(parameters, inputs, build_for(builder, "moe.topk_gate", parameters)(*inputs), exact=True)


@pytest.mark.parametrize("parameters", SOME, ids=("mixtral", "deepseek-v3", "wide"))
def test_infinities_and_nan_have_their_place(builder: KernelBuilder, parameters: MoeGateParameters) -> None:
    """NaN ranks first, minus infinity last, and other tokens are not touched by either."""
    inputs = inputs_for(parameters, 4)
    inputs[0][1, 3] = torch.nan
    inputs[0][2] = -torch.inf
    inputs[0][2, 1] = 1.0
    outputs = build_for(builder, "moe.topk_gate", parameters)(*inputs)
    assert outputs[1][1, 0] == 3 and outputs[0][1, 0].isnan()
    assert outputs[1][2, 0] == 1 or parameters.bias
    assert_agrees(parameters, inputs, outputs)


@settings(max_examples=200)
@given(
    groups=st.integers(1, 40),
    group_size=st.integers(2, 600),
    lanes=st.sampled_from([8, 16, 32]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_a_layout_gives_each_expert_to_one_lane(groups: int, group_size: int, lanes: int, dtype: str) -> None:
    """Vectors are aligned, none reaches into the next group, and lanes of a group take neighbouring ones."""
    parameters = MoeGateParameters(groups * group_size, 1, "sigmoid", dtype, num_groups=groups)
    layout = ExpertLayout.of(parameters, lanes)
    if layout is None:
        return
    turns = layout.group_size // layout.vector
    firsts = [
        layout.expert(lane, vector * layout.vector)
        for lane in range(layout.groups * layout.lanes_per_group)
        for vector in range(layout.vectors)
        if vector * layout.lanes_per_group + lane % layout.lanes_per_group < turns
    ]
    assert layout.groups * layout.lanes_per_group <= lanes
    assert sorted(firsts) == list(range(0, parameters.num_experts, layout.vector))
    assert layout.expert(0, layout.vector - 1) == layout.vector - 1
    if layout.lanes_per_group > 1:
        assert layout.expert(1, 0) - layout.expert(0, 0) == layout.vector


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (MoeGateParameters(8, 9, "softmax"), "top_k is 9"),
        (MoeGateParameters(8, 0, "softmax"), "top_k is 0"),
        (MoeGateParameters(10, 2, "softmax", num_groups=4, top_groups=2), "equal groups"),
        (MoeGateParameters(8, 2, "softmax", num_groups=4, top_groups=5), "top_groups is 5"),
        (MoeGateParameters(8, 2, "softmax", num_groups=8, top_groups=2), "only one"),
        (MoeGateParameters(16, 5, "softmax", num_groups=4, top_groups=1), "too few"),
    ],
)
def test_senseless_choices_are_refused(parameters: MoeGateParameters, reason: str) -> None:
    """On every target, and with a reason that names what is wrong."""
    for target in (CPU, Target.parse("cuda:sm_90a")):
        assert reason in (SPECS["moe.topk_gate"].unsupported(parameters, target) or "")


def test_more_experts_than_registers_are_refused_on_cuda_alone() -> None:
    """The CPU has no such limit."""
    parameters = MoeGateParameters(4096, 8, "softmax")
    assert "registers" in (SPECS["moe.topk_gate"].unsupported(parameters, Target.parse("cuda:sm_90a")) or "")
    assert SPECS["moe.topk_gate"].unsupported(parameters, CPU) is None


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "case"), [("sm_80", "deepseek-v2"), ("sm_90a", "deepseek-v3"), ("sm_120", "three-a-lane")]
)
@pytest.mark.daily(2)
def test_compiles_for_cuda(builder: KernelBuilder, arch: str, case: str) -> None:
    """With no GPU needed."""
    assert build_for(builder, "moe.topk_gate", CASES[case], f"cuda:{arch}").function is not None


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, parameters: MoeGateParameters) -> None:
    """Random logits, and logits of few levels, which tie."""
    for kernel in build(builder, gpu_requests("moe.topk_gate", parameters)):
        for tokens in (0, 1, 17, 4097, 65536):
            inputs = inputs_for(parameters, tokens, device="cuda")
            assert_agrees(parameters, inputs, kernel(*inputs))
            levels = [inputs[0].round(), *(torch.zeros_like(t) for t in inputs[1:])]
            assert_agrees(parameters, levels, kernel(*levels), exact=True)
        assert_agrees_on_awkward_logits(kernel, parameters, "cuda")
