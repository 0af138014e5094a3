"""Masks for experts that a top-k cannot choose vanish; any other mask stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import evaluated, imported

EXPERTS, TOP_K = 6, 2


def chosen(scores: Tensor) -> Tensor:
    """The experts of all tokens, sorted, as transformers' grouped products have them."""
    ids = scores.topk(TOP_K, -1).indices.reshape(-1)
    return ids.sort().values


def masked(condition: Tensor, scores: Tensor) -> Tensor:
    """Rows of ones, with zeros where ``condition`` holds."""
    rows = torch.ones_like(scores).repeat(1, TOP_K).reshape(-1, EXPERTS)
    return rows.masked_fill(condition.unsqueeze(-1), 0.0)


NEVER: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted experts": lambda s: masked(chosen(s) >= EXPERTS, s),
    "greater than the last": lambda s: masked(chosen(s) > EXPERTS - 1, s),
    "as int32": lambda s: masked(chosen(s).int() >= EXPERTS, s),
    "argmax": lambda s: torch.where((s.argmax(-1) >= EXPERTS)[:, None], 0.0, s),
}
SOMETIMES: dict[str, Callable[[Tensor], Tensor]] = {
    "the last expert": lambda s: masked(chosen(s) >= EXPERTS - 1, s),
    "a sum of experts": lambda s: masked(chosen(s) + 1 >= EXPERTS, s),
    "values, not indices": lambda s: masked(s.topk(TOP_K, -1).values.reshape(-1) >= 1, s),
    "along tokens": lambda s: torch.where((s.argmax(0) >= 4)[None], 0.0, s),
    "below": lambda s: masked(chosen(s) <= EXPERTS, s),
}


@pytest.mark.parametrize("form", NEVER)
def test_a_mask_that_never_holds_vanishes(form: str) -> None:
    """And the result stays what PyTorch computes."""
    scores = torch.randn(5, EXPERTS, generator=torch.Generator().manual_seed(0))
    module = imported(NEVER[form], scores)
    assert "R.where" not in module.script()
    torch.testing.assert_close(evaluated(module, scores)[0], NEVER[form](scores))


@pytest.mark.parametrize("form", SOMETIMES)
def test_a_mask_that_may_hold_stays(form: str) -> None:
    """Whatever looks alike."""
    scores = torch.randn(5, EXPERTS, generator=torch.Generator().manual_seed(0))
    module = imported(SOMETIMES[form], scores)
    assert "R.where" in module.script()
    torch.testing.assert_close(evaluated(module, scores)[0], SOMETIMES[form](scores))
