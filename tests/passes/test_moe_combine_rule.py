"""The rule for the weighted sum of experts' rows: how it may be written, and what only looks alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.passes.rules.moe_combine import MOE_COMBINE

RULES = (MOE_COMBINE,)
TOKENS, TOP_K, CHANNELS = 5, 3, 8


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, where each of a token's is, and a weight for each row."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TOKENS * TOP_K, CHANNELS, generator=generator).to(dtype)
    positions = torch.randperm(TOKENS * TOP_K, generator=generator)
    return rows, positions, torch.rand(TOKENS * TOP_K, generator=generator).to(dtype)


def sorted_weights(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Weights in the rows' order, as transformers has them."""
    return (rows * weights[:, None])[positions].view(-1, TOP_K, CHANNELS).sum(1)


WAYS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], bool]] = {
    "weights first": (lambda r, p, w: (w.unsqueeze(-1) * r)[p].view(-1, TOP_K, CHANNELS).sum(dim=1), True),
    "rows first": (sorted_weights, True),
    "index_select": (lambda r, p, w: (r * w[:, None]).index_select(0, p).reshape(-1, TOP_K, CHANNELS).sum(1), True),
    "no weights": (lambda r, p, w: r[p].view(-1, TOP_K, CHANNELS).sum(1), False),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_kernel_for_every_way_to_write_it(way: str) -> None:
    """The weights are the kernel's if there are any."""
    function, weighted = WAYS[way]
    examples = inputs()
    module = imported(function, *examples, symbolic=())
    (found,) = checked_substitutions(module, *examples, rules=RULES)
    assert (found.parameters.channels, found.parameters.top_k) == (CHANNELS, TOP_K)
    assert (found.parameters.weight_dtype is not None) == weighted


def test_sixteen_bits_are_summed_in_float32_and_rounded_once() -> None:
    """The casts around the sum become the kernel's own."""
    examples = inputs(torch.bfloat16)
    (found,) = checked_substitutions(
        imported(sorted_weights, *examples, symbolic=()), *examples, rules=RULES, rtol=2**-6
    )
    assert found.parameters.dtype == "bfloat16" and found.parameters.weight_dtype == "bfloat16"


def routed(rows: Tensor, experts: Tensor, weights: Tensor, order: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights of tokens, sorted as ``order`` says along with the copies, and back."""
    by_expert = torch.argsort(experts, stable=True)
    return sorted_weights(rows, torch.argsort(by_expert), weights[order(by_expert)])


@pytest.mark.parametrize(
    ("order", "expected"), [(lambda order: order, "tokens"), (lambda order: order.flip(0), "rows")]
)
def test_weights_are_read_before_they_were_sorted(order: Callable[[Tensor], Tensor], expected: str) -> None:
    """Where sorting them and reading them at the rows' positions cancel out; nowhere else."""
    rows, experts, weights = inputs()
    module = imported(lambda r, e, w: routed(r, e, w, order), rows, experts, weights, symbolic=())
    (found,) = checked_substitutions(module, rows, experts, weights, rules=RULES)
    assert found.parameters.weight_order == expected


UNLIKE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "over channels": lambda r, p, w: (r * w[:, None])[p].view(-1, TOP_K, CHANNELS).sum(2),
    "over tokens": lambda r, p, w: r[p].view(-1, TOP_K, CHANNELS).sum(0),
    "parts of rows": lambda r, p, w: r[p].view(-1, TOP_K, CHANNELS // 2).sum(1),
    "columns": lambda r, p, w: r.view(CHANNELS, -1).index_select(1, p).view(-1, TOP_K, CHANNELS).sum(1),
    "a mean": lambda r, p, w: r[p].view(-1, TOP_K, CHANNELS).amax(1),
    "a sum wider than the rows": lambda r, p, w: r[p].view(-1, TOP_K, CHANNELS).double().sum(1),
}


@pytest.mark.parametrize("form", UNLIKE)
def test_what_only_looks_alike_is_left_alone(form: str) -> None:
    """No kernel."""
    module = imported(UNLIKE[form], *inputs(), symbolic=())
    assert substituted(module, RULES)[1].substitutions == ()
