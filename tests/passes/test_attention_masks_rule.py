"""What masks of attention mean: by position, by data, windows, and what stays a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.attention_forms import (
    BATCH,
    HEADS,
    INFINITY,
    RULES,
    TOKENS,
    Function,
    distances,
    eager,
    heads,
    keep_first,
    lower_triangle,
    normal,
    only_call,
    parameters,
    symbolic,
)
from tests.passes.reference_execution import imported, substituted

MASKS: dict[str, tuple[Function, dict[str, Any]]] = {
    "is_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {"causal": "top_left"}),
    "boolean triangle": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, lower_triangle(q)), {"causal": "top_left"}
    ),
    "selected triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: s.masked_fill(~lower_triangle(q), -INFINITY)), {"causal": "top_left"}
    ),
    "kept triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: torch.where(lower_triangle(q), s, -1e9)), {"causal": "top_left"}
    ),
    "added triangle": (
        lambda q, k, v: eager(q, k, v, lambda s: s + torch.full((q.shape[2], k.shape[2]), -INFINITY).triu(1)),
        {"causal": "top_left"},
    ),
    "added least number": (
        lambda q, k, v: eager(q, k, v, lambda s: (~lower_triangle(q)) * torch.finfo(s.dtype).min + s),
        {"causal": "top_left"},
    ),
    "subtracted": (
        lambda q, k, v: eager(q, k, v, lambda s: s - (1 - lower_triangle(q).float()) * 1e9), {"causal": "top_left"}
    ),
    "all ones": (
        lambda q, k, v: eager(q, k, v, lambda s: s + (1 - torch.ones(q.shape[0], 1, 1, k.shape[2])) * -10000.0), {}
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "mask"), MASKS.values(), ids=MASKS)
def test_masks_by_position(function: Function, mask: dict[str, Any]) -> None:
    """A mask that only positions decide becomes a flag, or nothing where it hides nothing."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    assert only_call(symbolic(function, q, k, v), q, k, v) == parameters(**mask)


def test_causal_against_a_cache() -> None:
    """Queries that follow cached keys see them all: aligned at the bottom right."""

    def function(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
        position = torch.arange(q.shape[2])[:, None] + past.shape[2]
        return eager(q, k, v, lambda s: s.masked_fill(torch.arange(k.shape[2])[None] > position, -INFINITY))

    inputs = (*(heads(seed=seed) for seed in range(3)), heads(tokens=5, seed=4))
    sizes = (*({0: "batch", 2: "tokens"},) * 3, {0: "batch", 2: "past"})
    assert only_call(symbolic(function, *inputs, sizes=sizes), *inputs) == parameters(causal="bottom_right")


@pytest.mark.parametrize(("fill", "expected"), [(-INFINITY, {"causal": "bottom_right"}), (-1e9, {"mask": "additive"})])
def test_more_queries_than_keys_may_see_nothing(fill: float, expected: dict[str, Any]) -> None:
    """With a finite fill such a query averages over all keys, where the kernel's causal mask makes it zero."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        position = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
        return eager(q, k, v, lambda s: s.masked_fill(torch.arange(k.shape[2])[None] > position, fill))

    inputs = heads(), heads(tokens=5, seed=1), heads(tokens=5, seed=2)
    sizes = ({0: "batch", 2: "tokens"}, *({0: "batch", 2: "past"},) * 2)
    (call,) = substituted(symbolic(function, *inputs, sizes=sizes), RULES)[1].substitutions
    assert call.parameters == parameters(**expected)


def padding(mask: Tensor) -> Tensor:
    """What BERT adds to scores for a padding mask ``[batch, keys]``."""
    return (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min


TENSORS: dict[str, tuple[Function, Tensor, dict[str, Any]]] = {
    "boolean": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        keep_first(BATCH, 1, TOKENS, TOKENS),
        {"mask": "bool", "mask_per_batch": True},
    ),
    "boolean of two dimensions": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), keep_first(TOKENS, TOKENS), {"mask": "bool"},
    ),
    "selected": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -INFINITY)),
        keep_first(BATCH, HEADS, TOKENS, TOKENS),
        {"mask": "bool", "mask_per_batch": True, "mask_per_head": True},
    ),
    "selected with a finite fill": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9)),
        keep_first(BATCH, 1, 1, TOKENS),
        {"mask": "additive", "mask_per_batch": True, "mask_per_query": False},
    ),
    "added": (
        lambda q, k, v, m: eager(q, k, v, lambda s: m + s),
        normal(1, HEADS, TOKENS, TOKENS, seed=8),
        {"mask": "additive", "mask_per_head": True},
    ),
    "added before the scale": (
        lambda q, k, v, m: ((q @ k.mT + m) * 0.25).softmax(-1) @ v,
        normal(1, HEADS, TOKENS, TOKENS, seed=8),
        {"mask": "additive", "mask_per_head": True},
    ),
    "padding": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s + padding(m)),
        keep_first(BATCH, TOKENS).long(),
        {"mask": "additive", "mask_per_batch": True, "mask_per_query": False},
    ),
    "padding and causal": (
        lambda q, k, v, m: eager(q, k, v, lambda s: (s + padding(m)).masked_fill(~lower_triangle(q), -INFINITY)),
        keep_first(BATCH, TOKENS).long(),
        {"mask": "additive", "mask_per_batch": True, "mask_per_query": False, "causal": "top_left"},
    ),
    "two masks": (
        lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -INFINITY) + m.float()),
        keep_first(BATCH, 1, 1, TOKENS),
        {"mask": "additive", "mask_per_batch": True, "mask_per_query": False},
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "mask", "expected"), TENSORS.values(), ids=TENSORS)
def test_masks_by_data(function: Function, mask: Tensor, expected: dict[str, Any]) -> None:
    """Every other mask is passed on, broadcast over keys where the model left that to its addition; for all queries one
    row where it is one for all."""
    inputs = (*(heads(seed=seed) for seed in range(3)), mask)
    module = imported(function, *inputs, symbolic=())
    assert only_call(module, *inputs) == parameters(**expected)


def near_data(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A mask ``[batch, 1, 1, keys]`` of data, beside a window: in one conjunction."""
    seen = (distances(q, k) >= 0) & (v[:, :1, :, 0] > -9)[:, :, None]
    return F.scaled_dot_product_attention(q, k, v, seen & (distances(q, k) < 3))


WINDOWS: dict[str, tuple[Function, dict[str, Any]]] = {
    "triangles": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, lower_triangle(q) & lower_triangle(q).triu(-2)),
        {"causal": "top_left", "window": 2},
    ),
    "negated": (
        lambda q, k, v: eager(
            q, k, v, lambda s: s.masked_fill((distances(q, k) < 0) | (distances(q, k) > 2), -INFINITY)
        ),
        {"causal": "top_left", "window": 2},
    ),
    "in two steps": (
        lambda q, k, v: eager(
            q, k, v,
            lambda s: s.masked_fill(~lower_triangle(q), -1e9) + torch.where(distances(q, k).abs() <= 2, 0, -1e9),
        ),
        {"causal": "top_left", "window": 2},
    ),
    "both sides": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, distances(q, k).abs() <= 2), {"window": 2}
    ),
    "both sides by products": (
        lambda q, k, v: eager(q, k, v, lambda s: s.masked_fill(distances(q, k).abs() > 1, -1e9)), {"window": 1}
    ),
    "beside data": (
        near_data,
        {"causal": "top_left", "window": 2, "mask": "bool", "mask_per_batch": True, "mask_per_query": False},
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "mask"), WINDOWS.values(), ids=WINDOWS)
def test_windows(function: Function, mask: dict[str, Any]) -> None:
    """Positions that bound what is seen on both sides become a window."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    assert only_call(symbolic(function, q, k, v), q, k, v) == parameters(**mask)


def test_a_window_against_a_cache() -> None:
    """Queries that follow cached keys have their window end at the bottom right."""

    def function(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
        position, key = torch.arange(q.shape[2])[:, None] + past.shape[2], torch.arange(k.shape[2])
        return eager(q, k, v, lambda s: s.masked_fill((key > position) | (key <= position - 4), -INFINITY))

    inputs = (*(heads(seed=seed) for seed in range(3)), heads(tokens=5, seed=4))
    sizes = (*({0: "batch", 2: "tokens"},) * 3, {0: "batch", 2: "past"})
    module = symbolic(function, *inputs, sizes=sizes)
    assert only_call(module, *inputs) == parameters(causal="bottom_right", window=3)


def chunks(distance: Tensor) -> Tensor:
    """Llama 4's: a query sees the keys before it in its own part of the sequence."""
    chunk = torch.arange(distance.shape[0]) // 4
    return (distance >= 0) & (chunk[:, None] == chunk)


NO_WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uneven": lambda distance: (distance <= 2) & (distance >= -1),
    "without the query's own": lambda distance: (distance <= 3) & (distance > 0),
    "with a hole": lambda distance: (distance >= 0) & (distance <= 3) & (distance != 1),
    "chunks": chunks,
}


@pytest.mark.parametrize("seen", NO_WINDOWS.values(), ids=NO_WINDOWS)
def test_other_positions_stay_a_mask(seen: Callable[[Tensor], Tensor]) -> None:
    """A mask of positions that is neither causal nor a window must not be taken for one."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    module = symbolic(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, seen(distances(q, k))), q, k, v)
    (call,) = substituted(module, RULES)[1].substitutions
    assert call.parameters == parameters(mask="bool")


def test_a_small_number_hides_nothing() -> None:
    """What is added to the scores of later keys makes them less likely; it does not leave them out."""
    q, k, v = (heads(seed=seed) for seed in range(3))
    function = lambda q, k, v: eager(q, k, v, lambda s: s + torch.where(distances(q, k) < 0, -1.0, 0.0))  # noqa: E731
    (call,) = substituted(symbolic(function, q, k, v), RULES)[1].substitutions
    assert call.parameters == parameters(mask="additive")


HIDDEN: dict[str, Function] = {
    "filled": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9)),
    "filled with less": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e4)),
    "filled after a sum": lambda q, k, v, m: eager(q, k, v, lambda s: (s + k[:, :, None, :, 0]).masked_fill(~m, -1e9)),
    "filled twice": lambda q, k, v, m: eager(q, k, v, lambda s: s.masked_fill(~m, -1e9).masked_fill(~m.roll(1), -1e9)),
}


@pytest.mark.parametrize("function", HIDDEN.values(), ids=HIDDEN)
def test_a_query_that_sees_nothing_averages_whatever_its_scores(function: Function) -> None:
    """The fill takes the place of scores: their digits beyond it must not be left in the sum of both."""
    mask = keep_first(BATCH, 1, 1, TOKENS)
    mask[0] = False
    inputs = (heads() * 300, heads(seed=1), heads(seed=2), mask)
    # A rounding of a score of a thousand is some 1e-4 of its weight; without the fill weights differ by all they are.
    assert only_call(imported(function, *inputs, symbolic=()), *inputs, rtol=1e-4).mask == "additive"


def test_numbers_of_16_bits_that_hide_scores_are_no_mask() -> None:
    """Of float16 none is so large that a score is lost in the sum of both."""
    inputs = (*(heads(seed=seed).half() for seed in range(3)), keep_first(BATCH, 1, 1, TOKENS))
    module = imported(HIDDEN["filled with less"], *inputs, symbolic=())
    report = substituted(module, RULES)[1]
    assert not report.substitutions
    assert "none of float16 is so large as to" in str(report.refusals)
