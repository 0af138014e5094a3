"""Gating is found in all the ways in which routers are written, and nowhere that only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.passes.rules.moe_gate import MOE_GATE

RULES = (MOE_GATE,)
EXPERTS = 16

Pair = tuple[Tensor, Tensor]


def logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits without ties, the same each time."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    return (order.reshape(shape) / count * 8 - 4).to(dtype)


def normalized(weights: Tensor, epsilon: float = 0.0) -> Tensor:
    """``weights`` divided by their sum over a token's experts."""
    return weights / (weights.sum(-1, keepdim=True) + epsilon if epsilon else weights.sum(-1, keepdim=True))


def softmax_first(x: Tensor) -> Pair:
    """Qwen3-MoE without ``norm_topk_prob``."""
    return torch.topk(F.softmax(x, -1), 4)


def softmax_first_normalized(x: Tensor) -> Pair:
    """Mixtral."""
    weights, indices = torch.topk(F.softmax(x, -1), 4)
    return normalized(weights), indices


def topk_first(x: Tensor) -> Pair:
    """GPT-OSS: softmax over the chosen, which is the same as normalizing."""
    best, indices = torch.topk(x, 4)
    return F.softmax(best, -1), indices


def sigmoid_of_chosen(x: Tensor) -> Pair:
    """Llama 4."""
    best, indices = torch.topk(x, 4)
    return torch.sigmoid(best), indices


def sigmoid_gathered(x: Tensor) -> Pair:
    """Weights gathered by the indices, and scaled."""
    scores = torch.sigmoid(x)
    indices = torch.topk(scores, 4)[1]
    return scores.gather(-1, indices) * 2.5, indices


def scale_first(x: Tensor) -> Pair:
    """The factor on the left, an epsilon, and the sum expanded by hand."""
    weights, indices = torch.topk(torch.sigmoid(x), 4)
    return 1.5 * (weights / (1e-6 + weights.sum(-1).unsqueeze(-1))), indices


def sqrt_softplus(x: Tensor) -> Pair:
    """The square root of softplus."""
    weights, indices = torch.topk(F.softplus(x).sqrt(), 4)
    return normalized(weights), indices


def argsorted(x: Tensor) -> Pair:
    """The first of all experts in order."""
    scores = F.softmax(x, -1)
    indices = torch.argsort(scores, dim=-1, descending=True)[..., :4]
    return scores.gather(-1, indices), indices


def ranked_by_logits(x: Tensor) -> Pair:
    """The logits' order is their scores'."""
    indices = torch.topk(x, 4)[1]
    return F.softmax(x, -1).gather(-1, indices), indices


POSITIVE = {
    softmax_first: MoeGateParameters(EXPERTS, 4, "softmax"),
    softmax_first_normalized: MoeGateParameters(EXPERTS, 4, "softmax", normalize=True),
    topk_first: MoeGateParameters(EXPERTS, 4, "softmax", normalize=True),
    sigmoid_of_chosen: MoeGateParameters(EXPERTS, 4, "sigmoid"),
    sigmoid_gathered: MoeGateParameters(EXPERTS, 4, "sigmoid", scale=2.5),
    scale_first: MoeGateParameters(EXPERTS, 4, "sigmoid", normalize=True, epsilon=1e-6, scale=1.5),
    sqrt_softplus: MoeGateParameters(EXPERTS, 4, "sqrt_softplus", normalize=True),
    argsorted: MoeGateParameters(EXPERTS, 4, "softmax"),
    ranked_by_logits: MoeGateParameters(EXPERTS, 4, "softmax"),
}


@pytest.mark.parametrize("router", POSITIVE, ids=lambda f: f.__name__)
def test_routers(router: Callable[[Tensor], Pair]) -> None:
    """Each router is one call that computes weights and indices."""
    x = logits(5, EXPERTS)
    (call,) = checked_substitutions(imported(router, x), x, rules=RULES)
    assert (call.parameters, call.count) == (POSITIVE[router], 1)


def test_no_operator_of_the_router_is_left() -> None:
    """Weights and indices both come from the kernel."""
    module, _ = substituted(imported(softmax_first_normalized, logits(5, EXPERTS)), RULES)
    script = module["main"].script()
    assert "call_tir" in script
    assert not any(f"R.{name}" in script for name in ("topk", "nn.softmax", "sum", "divide"))


def test_batched_logits() -> None:
    """Any number of axes may precede the experts'."""
    x = logits(3, 2, EXPERTS)
    (call,) = checked_substitutions(imported(softmax_first_normalized, x), x, rules=RULES)
    assert call.parameters == MoeGateParameters(EXPERTS, 4, "softmax", normalize=True)


def test_casts_in_between() -> None:
    """16-bit logits are scored in float32, weights rounded at the end."""

    def router(x: Tensor) -> Pair:
        weights, indices = torch.topk(F.softmax(x, -1, dtype=torch.float), 4)
        return normalized(weights).to(x.dtype), indices

    x = logits(4, EXPERTS, dtype=torch.float16)
    (call,) = checked_substitutions(imported(router, x), x, rules=RULES, rtol=2e-3)
    assert call.parameters == MoeGateParameters(
        EXPERTS, 4, "softmax", logits_dtype="float16", normalize=True, weights_dtype="float16"
    )


def test_everything_in_16_bits() -> None:
    """What PyTorch sums in float32 inside, and rounds again, is one router all the same."""
    x = logits(4, EXPERTS, dtype=torch.float16)
    (call,) = checked_substitutions(imported(scale_first, x), x, rules=RULES, rtol=2e-3)
    assert call.parameters == MoeGateParameters(
        EXPERTS,
        4,
        "sigmoid",
        logits_dtype="float16",
        normalize=True,
        epsilon=call.parameters.epsilon,
        scale=1.5,
        weights_dtype="float16",
    )
    assert call.parameters.epsilon == pytest.approx(1e-6, rel=0.02)  # as float16 has it


def grouped(scores: Tensor, ranks: Tensor, excluded: str) -> Tensor:
    """The ranks of DeepSeek-V3's gate, limited to two of four groups by ``excluded``."""
    group_ranks = ranks.view(-1, 4, EXPERTS // 4).topk(2, dim=-1)[0].sum(-1)
    best = torch.topk(group_ranks, k=2, dim=-1)[1]
    mask = torch.zeros_like(group_ranks).scatter(1, best, 1)
    if excluded == "in groups":
        groups = ranks.view(-1, 4, EXPERTS // 4)
        return groups.masked_fill(~mask.bool().unsqueeze(-1), float("-inf")).flatten(-2)
    wide = mask.unsqueeze(-1).expand(-1, 4, EXPERTS // 4).reshape(-1, EXPERTS)
    if excluded == "product":
        return ranks * wide
    if excluded == "repeated":
        wide = mask.repeat_interleave(EXPERTS // 4, 1)
    if excluded == "where":
        return torch.where(wide.bool(), ranks, float("-inf"))
    return ranks.masked_fill(~wide.bool(), 0.0)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("excluded", "rank"),
    [("fill", "zero"), ("repeated", "zero"), ("product", "zero"), ("where", "-inf"), ("in groups", "-inf")],
)
def test_group_limited_choice_with_bias(excluded: str, rank: str) -> None:
    """DeepSeek-V3's gate, in the ways of leaving groups out."""

    def router(x: Tensor, bias: Tensor) -> Pair:
        scores = x.sigmoid()
        indices = torch.topk(grouped(scores, scores + bias.unsqueeze(0), excluded), k=3, dim=-1)[1]
        weights = scores.gather(1, indices)
        return normalized(weights, 1e-20) * 2.5, indices

    x, bias = logits(6, EXPERTS), torch.linspace(0.3, -0.1, EXPERTS)
    (call,) = checked_substitutions(imported(router, x, bias), x, bias, rules=RULES)
    assert call.parameters == MoeGateParameters(
        EXPERTS,
        3,
        "sigmoid",
        bias=True,
        num_groups=4,
        top_groups=2,
        excluded_rank=rank,
        normalize=True,
        epsilon=1e-20,
        scale=2.5,
    )


def smallest(x: Tensor) -> Pair:
    """The least likely experts."""
    return torch.topk(F.softmax(x, -1), 4, largest=False)


def over_tokens(x: Tensor) -> Pair:
    """The best tokens of each expert (expert choice)."""
    return torch.topk(F.softmax(x, -1), 2, dim=0)


def softmax_over_tokens(x: Tensor) -> Pair:
    """Scores that sum to one over the tokens."""
    return torch.topk(F.softmax(x, 0), 4)


def gathered_from_other_scores(x: Tensor) -> Pair:
    """Ranked by one tensor, weighted by another."""
    indices = torch.topk(torch.sigmoid(x * x), 4)[1]
    return torch.sigmoid(x).gather(1, indices), indices


def weights_with_bias(x: Tensor) -> Pair:
    """The bias stays in the weights."""
    bias = torch.arange(EXPERTS, dtype=torch.float32) / EXPERTS
    return torch.topk(torch.sigmoid(x) + bias, 4)


def last_of_argsort(x: Tensor) -> Pair:
    """The second to fifth expert."""
    scores = F.softmax(x, -1)
    indices = torch.argsort(scores, dim=-1, descending=True)[:, 1:5]
    return scores.gather(1, indices), indices


def means_of_groups(x: Tensor) -> Pair:
    """Groups ranked by all of their experts."""
    scores = F.softmax(x, -1)
    best = torch.topk(scores.view(-1, 4, 4).sum(-1), 2)[1]
    mask = torch.zeros_like(scores[:, :4]).scatter(1, best, 1).repeat_interleave(4, 1)
    indices = torch.topk(scores.masked_fill(~mask.bool(), 0.0), 3)[1]
    return scores.gather(1, indices), indices


def interleaved_groups(x: Tensor) -> Pair:
    """Groups of every fourth expert."""
    scores = F.softmax(x, -1)
    best = torch.topk(scores.view(-1, 4, 4).topk(2)[0].sum(-1), 2)[1]
    mask = torch.zeros_like(scores[:, :4]).scatter(1, best, 1).repeat(1, 4)
    indices = torch.topk(scores.masked_fill(~mask.bool(), 0.0), 3)[1]
    return scores.gather(1, indices), indices


REFUSED = {
    smallest: "smallest scores",
    over_tokens: "along axis 0",
    softmax_over_tokens: "softmax does not run over the experts",
    gathered_from_other_scores: "other numbers than the scores",
    weights_with_bias: "contain the bias",
    last_of_argsort: "others than the first",
    means_of_groups: "sum of their two best",
    interleaved_groups: "not of consecutive experts",
}


@pytest.mark.parametrize("router", REFUSED, ids=lambda f: f.__name__)
def test_near_misses_are_refused(router: Callable[[Tensor], Pair]) -> None:
    """Each keeps its operators, for the reason that the report gives."""
    reasons = refusal_reasons(imported(router, logits(5, EXPERTS)), RULES)
    assert any(REFUSED[router] in reason for reason in reasons)


def test_a_sum_over_other_tokens_is_left_outside() -> None:
    """What divides by another sum is no normalization; the gate before it is still a kernel."""

    def router(x: Tensor) -> Pair:
        weights, indices = torch.topk(F.softmax(x, -1), 4)
        return weights / weights.sum(0, keepdim=True), indices

    x = logits(5, EXPERTS)
    module = imported(router, x)
    (call,) = checked_substitutions(module, x, rules=RULES)
    assert call.parameters == MoeGateParameters(EXPERTS, 4, "softmax")
    assert "sums along the axes" in substituted(module, RULES)[1].refusals[0].reason


def test_a_second_softmax_is_left_outside() -> None:
    """Softmax over weights that are scores already is no part of gating."""

    def router(x: Tensor) -> Pair:
        best, indices = torch.topk(F.softmax(x, -1), 4)
        return F.softmax(best, -1), indices

    x = logits(5, EXPERTS)
    module = imported(router, x)
    (call,) = checked_substitutions(module, x, rules=RULES)
    assert call.parameters == MoeGateParameters(EXPERTS, 4, "softmax")
    assert "scored again" in substituted(module, RULES)[1].refusals[0].reason


def test_a_scale_that_is_not_constant_is_left_outside() -> None:
    """A factor known only at run time is multiplied after the kernel."""

    def router(x: Tensor, scale: Tensor) -> Pair:
        weights, indices = torch.topk(F.softmax(x, -1), 4)
        return normalized(weights) * scale, indices

    x, scale = logits(5, EXPERTS), torch.tensor([2.0])
    (call,) = checked_substitutions(imported(router, x, scale), x, scale, rules=RULES)
    assert call.parameters == MoeGateParameters(EXPERTS, 4, "softmax", normalize=True)


def test_scaling_before_dividing() -> None:
    """Whatever part of another order of operations becomes the kernel, the numbers stay."""

    def router(x: Tensor) -> Pair:
        weights, indices = torch.topk(F.softmax(x, -1), 4)
        return weights * 2.5 / weights.sum(-1, keepdim=True), indices

    x = logits(5, EXPERTS)
    assert len(checked_substitutions(imported(router, x), x, rules=RULES)) == 1


def test_topk_of_anything_else_is_not_even_a_near_miss() -> None:
    """Numbers that no scoring function made have no gate."""
    x = logits(5, EXPERTS)
    assert refusal_reasons(imported(lambda x: torch.topk(x * 2, 4), x), RULES) == []
