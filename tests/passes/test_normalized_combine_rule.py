"""Experts' rows, a residual and the normalization after them become one kernel call; what needs the sum keeps two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.passes.rules.moe_combine import MOE_COMBINE
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.normalized_combine import NORMALIZED_COMBINE

RULES = (NORMALIZED_COMBINE, MOE_COMBINE, NORMALIZATION)
TOKENS, TOP_K, CHANNELS = 6, 3, 8


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Rows, where each of a token's is, a weight for each row, a residual, and the normalization's weight."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TOKENS * TOP_K, CHANNELS, generator=generator).to(dtype)
    positions = torch.randperm(TOKENS * TOP_K, generator=generator)
    weights = torch.rand(TOKENS * TOP_K, generator=generator).to(dtype)
    residual = torch.randn(2, TOKENS // 2, CHANNELS, generator=generator).to(dtype)
    return rows, positions, weights, residual, torch.rand(CHANNELS, generator=generator).to(dtype)


def experts(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Their sum for each token, as transformers has it."""
    return (rows * weights[:, None])[positions].view(-1, TOP_K, CHANNELS).sum(1).to(rows.dtype)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square normalization as transformers has it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer(r: Tensor, p: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The end of one layer and the beginning of the next: the sum goes on."""
    x = residual + experts(r, p, w).view_as(residual)
    return rms(x, weight), x


def last(r: Tensor, p: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Nothing else needs the sum."""
    return rms(experts(r, p, w).view_as(residual) + residual, weight)


def layer_norm(r: Tensor, p: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The other kind, without weights of rows."""
    x = r[p].view(-1, TOP_K, CHANNELS).sum(1).view_as(residual) + residual
    return torch.nn.functional.layer_norm(x, (CHANNELS,), weight, weight)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "keeps_sum"), [(layer, True), (last, False), (layer_norm, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_kernel(function: Callable[..., object], keeps_sum: bool, dtype: torch.dtype) -> None:
    """Whichever of the two terms comes first."""
    examples = inputs(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-5
    module = imported(function, *examples, symbolic=())
    (found,) = checked_substitutions(module, *examples, rules=RULES, rtol=tolerance)
    assert found.rule == NORMALIZED_COMBINE.name and found.parameters.residual
    assert isinstance(found.parameters.combined, MoeCombineParameters)
    assert found.parameters.keeps_sum == keeps_sum


def read_twice(r: Tensor, p: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The experts' sum is a result of its own."""
    added = experts(r, p, w)
    return rms(residual + added.view_as(residual), weight), added


def over_two_tokens(r: Tensor, p: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Normalized over the channels of two tokens at once."""
    x = experts(r, p, w).view(-1, 2 * CHANNELS) + residual.view(-1, 2 * CHANNELS)
    return rms(x, weight.repeat(2))


@pytest.mark.parametrize("function", [read_twice, over_two_tokens])
def test_what_one_kernel_cannot_do_is_two(function: Callable[..., object]) -> None:
    """Each half is found by its own rule."""
    examples = inputs()
    module = imported(function, *examples, symbolic=())
    found = checked_substitutions(module, *examples, rules=RULES)
    assert {substitution.rule for substitution in found} == {MOE_COMBINE.name, NORMALIZATION.name}


def test_without_a_residual_it_is_two() -> None:
    """The rule is about the sum; alone, rows are rounded before they are normalized, as the model says."""
    module = imported(lambda r, p, w, _, weight: rms(experts(r, p, w), weight), *inputs(), symbolic=())
    report = substituted(module, RULES)[1]
    assert NORMALIZED_COMBINE.name not in {substitution.rule for substitution in report.substitutions}
