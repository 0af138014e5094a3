"""Gates in other forms than a plain top-k, and what only looks like them."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, evaluated, imported, substituted
from tests.passes.rotary_gate_and_expert_forms import EXPERTS, GATE_FORMS, UNLIKE_GATES
from tkc.passes.rules.moe_gate import MOE_GATE

TOKENS = 6


def inputs() -> tuple[Tensor, Tensor]:
    """Logits without ties, and a bias that changes the order."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(TOKENS, EXPERTS, generator=generator), torch.randn(EXPERTS, generator=generator) / 4


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", GATE_FORMS)
def test_every_form_is_the_kernel(name: str) -> None:
    """With its numbers, and no operator left that ranks or chooses."""
    form, arguments = GATE_FORMS[name], inputs()
    # PyTorch's own export wants a constant number of rows for take_along_dim.
    module = imported(form.function, *arguments, symbolic=() if name == "taken_along" else None)
    (found,) = checked_substitutions(module, *arguments, rules=(MOE_GATE,), rtol=1e-6)
    assert asdict(found.parameters).items() >= ({"num_experts": EXPERTS, "top_k": 4} | form.parameters).items()
    script = substituted(module, (MOE_GATE,))[0]["main"].script()
    assert not any(f"R.{operator}(" in script for operator in ("topk", "argsort", "gather_elements", "softmax"))


@pytest.mark.parametrize("name", UNLIKE_GATES)
def test_what_only_looks_alike_keeps_its_operators(name: str) -> None:
    """Nothing is substituted, and the numbers are PyTorch's."""
    arguments = inputs()
    module = imported(UNLIKE_GATES[name], *arguments)
    assert substituted(module, (MOE_GATE,))[1].substitutions == ()
    for found, expected in zip(evaluated(module, *arguments), UNLIKE_GATES[name](*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def sorted_and_read_whole(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """All scores in order, of which the first are read besides."""
    weights, _ = x.softmax(-1).sort(-1, descending=True)
    return weights[:, :4], weights.cumsum(-1)


def sliced_tokens(x: Tensor, _: Tensor) -> Tensor:
    """Gathered, and sliced along another axis than the gather's."""
    return x.gather(1, x.argsort(-1, descending=True))[:3]


def wrapped_too_early(x: Tensor, _: Tensor) -> Tensor:
    """A remainder that changes indices."""
    return x.topk(4, -1).indices % (EXPERTS // 2)


def limited_too_low(x: Tensor, _: Tensor) -> Tensor:
    """Limits that change indices."""
    return x.topk(4, -1).indices.clamp(1, EXPERTS - 2)


def narrowed(x: Tensor, _: Tensor) -> Tensor:
    """Indices that become negative on the way."""
    return (torch.arange(320.0) + 0 * x[:, :1]).topk(300, -1).indices.to(torch.int8).long().clamp(0, 319)


@pytest.mark.parametrize(
    "function", [sorted_and_read_whole, sliced_tokens, wrapped_too_early, limited_too_low, narrowed]
)
def test_canonical_forms_compute_the_same(function: object) -> None:
    """Where slices and limits of indices are no gate's."""
    arguments = inputs()
    results = evaluated(imported(function, *arguments, symbolic=()), *arguments)  # type: ignore[arg-type]
    expected = function(*arguments)  # type: ignore[operator]
    for found, wanted in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
