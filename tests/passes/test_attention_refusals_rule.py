"""What only looks like attention."""

from __future__ import annotations

import pytest
import torch
from tvm.ir import IRModule

from tests.passes.attention_forms import RULES, Function, heads, lower_triangle, normal
from tests.passes.reference_execution import imported, refusal_reasons


def square(function: Function) -> IRModule:
    """``function`` of queries, keys and values whose axes all have one size, so that shapes give nothing away."""
    return imported(function, *(normal(4, 4, 4, 4, seed=seed) for seed in range(3)), symbolic=())


NEAR_MISSES: dict[str, tuple[Function, str]] = {
    "softmax over the queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "softmax runs over the queries"),
    "softmax over the heads": (lambda q, k, v: (q @ k.mT).softmax(1) @ v, "softmax runs over another axis"),
    "scale of data": (lambda q, k, v: (q @ k.mT * q.mean()).softmax(-1) @ v, "multiplied by something"),
    "divisor of data": (lambda q, k, v: (q @ k.mT / q.sum(-1, True)).softmax(-1) @ v, "divided by something"),
    "mask multiplied": (lambda q, k, v: (q @ k.mT * lower_triangle(q)).softmax(-1) @ v, "multiplied by something"),
    "masked by zero": (
        lambda q, k, v: (q @ k.mT).masked_fill(lower_triangle(q), 0.0).softmax(-1) @ v, "filled with 0.0"
    ),
    "scores capped twice": (lambda q, k, v: (q @ k.mT).tanh().tanh().softmax(-1) @ v, "pass through tanh after"),
    "scores masked, then capped": (
        lambda q, k, v: (q @ k.mT).masked_fill(~lower_triangle(q), -1e9).tanh().softmax(-1) @ v,
        "pass through tanh after they were masked",
    ),
    "a bounded sigmoid": (lambda q, k, v: (q @ k.mT).sigmoid().softmax(-1) @ v, "pass through sigmoid"),
    "the first weights dropped": (
        lambda q, k, v: torch.cat([q.mean(-1, True), q @ k.mT], -1).softmax(-1)[..., 1:] @ v, "another axis",
    ),
    "weights transposed": (lambda q, k, v: (q @ k.mT).softmax(-1).mT @ v, "softmax runs over the queries"),
    "values by heads": (lambda q, k, v: (q @ k.mT).softmax(-1).transpose(0, 1) @ v, "axis each for the batch"),
    "rows cleared otherwise": (
        lambda q, k, v: torch.where((q > 0).all(-1, True), 0.0, (q @ k.mT).softmax(-1)) @ v, "zeros are selected",
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "reason"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function: Function, reason: str) -> None:
    """What looks like attention but is not keeps its operators, and the report says why."""
    (found,) = refusal_reasons(square(function), RULES)
    assert reason in found


def test_weights_that_are_returned_too() -> None:
    """A kernel would not give the weights, so that they would be computed a second time."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    module = imported(lambda q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w), q, k, v, symbolic=())
    (reason,) = refusal_reasons(module, RULES)
    assert "is needed elsewhere too: by " in reason


def test_other_products_of_softmax_are_no_attention() -> None:
    """A mixture of experts by softmax weights has no queries and keys."""
    weights, experts = normal(3, 5), normal(5, 8)
    module = imported(lambda w, e: w.softmax(-1) @ e, weights, experts, symbolic=())
    assert refusal_reasons(module, RULES) == ["softmax is not taken of a matrix product"]


def test_products_without_softmax_are_not_mentioned() -> None:
    """An ordinary product is nothing for the report."""
    assert refusal_reasons(square(lambda q, k, v: (q @ k.mT) @ v), RULES) == []
