"""Rotary embedding, gates and experts as different authors write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BATCH, HEADS, SEQUENCE, SIZE = 3, 2, 5, 8
HALF = SIZE // 2


@dataclass(frozen=True)
class RotaryForm:
    """A function of ``x [batch, heads, sequence, size]`` and two tables ``[sequence, channels]``.

    ``parameters`` are those that the kernel must have.
    """

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    channels: int
    parameters: dict[str, Any]


def signs(*numbers: float) -> Tensor:
    """A vector of a head's size in equal parts."""
    return torch.cat([torch.full((SIZE // len(numbers),), number) for number in numbers])


def halves(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """GPT-NeoX's pairs, of tables for half a head."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def halves_sliced_and_commuted(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """The sine first, and a negated product in place of a difference."""
    a, b = x[..., :HALF], x[..., HALF:]
    return torch.cat([-(s * b) + c * a, s * a + c * b], -1)


def halves_of_whole_tables(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Each half has its part of the tables."""
    (a, b), (c1, c2), (s1, s2) = (t.split(HALF, -1) for t in (x, c, s))
    return torch.cat([a * c1 - b * s1, b * c2 + a * s2], -1)


def halves_first_of_whole_tables(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Tables that repeat, of which one half is read."""
    c, s, a, b = c[:, :HALF], s[:, :HALF], x[..., :HALF], x[..., HALF:]
    return torch.cat([a * c + b * -s, b * c + a * s], -1)


def halves_on_an_axis(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Halves as an axis of their own, stacked again."""
    a, b = x.unflatten(-1, (2, HALF)).unbind(-2)
    return torch.stack([a * c - b * s, a * s + b * c], -2).flatten(-2)


def halves_before_the_swap(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Each half is transposed by itself."""
    a, b = (t.transpose(1, 2) for t in x.chunk(2, -1))
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def halves_widened(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """In float32, each half rounded by itself."""
    a, b = (t.float() for t in x.chunk(2, -1))
    c, s = c.float(), s.float()
    return torch.cat([(a * c - b * s).to(x.dtype), (b * c + a * s).to(x.dtype)], -1)


def rolled(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """A roll and a vector of signs."""
    sign = torch.cat((-torch.ones(HALF), torch.ones(HALF))).to(x.dtype)
    return x * c + torch.roll(x, HALF, -1) * sign * s


def rolled_by_a_signed_table(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """The signs belong to the sines."""
    sign = signs(-1.0, 1.0).to(x.dtype)
    return c * x + (s * sign) * torch.roll(x, -HALF, -1)


def neighbours(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """GPT-J's pairs, stacked."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def neighbours_turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Whole tables, and the heads with neighbours exchanged."""
    crossed = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    return x * c + crossed * s


def neighbours_repeated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Tables repeated for each pair."""
    c, s = c.repeat_interleave(2, -1), s.repeat_interleave(2, -1)
    crossed = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * c + crossed * s


def neighbours_on_an_axis(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Pairs as an axis of their own, as Llama's own code in real numbers."""
    a, b = x.reshape(*x.shape[:-1], HALF, 2).unbind(-1)
    return torch.cat([(a * c - b * s).unsqueeze(-1), (b * c + a * s).unsqueeze(-1)], -1).reshape(x.shape)


def neighbours_complex(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Llama's own code: a product of complex numbers."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], HALF, 2))
    return torch.view_as_real(z * torch.complex(c.float(), s.float())).flatten(3).type_as(x)


def neighbours_polar(x: Tensor, angles: Tensor, _: Tensor) -> Tensor:
    """Complex numbers of angles, as Llama's own code makes them."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], HALF, 2))
    return torch.view_as_real(z * torch.polar(torch.ones(1), angles.float())).flatten(3).type_as(x)


def neighbours_by_matrices(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Flux: a matrix of two rows for each angle."""
    m = torch.stack([c, -s, s, c], -1).reshape(1, 1, SEQUENCE, HALF, 2, 2)
    y = x.reshape(*x.shape[:-1], HALF, 1, 2)
    return (m[..., 0] * y[..., 0] + m[..., 1] * y[..., 1]).reshape(x.shape)


def halves_by_addcmul(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Products that are added by one operator."""
    a, b = x.tensor_split(2, -1)
    return torch.cat([torch.addcmul(a * c, b, s, value=-1), torch.addcmul(b * c, a, s)], -1)


def first_half_turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """GPT-NeoX: the first channels alone turn."""
    turning, rest = x[..., :HALF], x[..., HALF:]
    a, b = turning.chunk(2, -1)
    return torch.cat([turning * c + torch.cat([-b, a], -1) * s, rest], -1)


def first_half_in_parts(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Three parts, put together at once."""
    a, b, rest = x.split([2, 2, SIZE - 4], -1)
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


def first_neighbours_turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """GPT-J: neighbours among the first channels."""
    turning, rest = x[..., :HALF], x[..., HALF:]
    a, b = turning[..., ::2], turning[..., 1::2]
    return torch.cat([torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2), rest], -1)


_FIRST = {"turned": HALF}
_NEIGHBOURS = {"pairs": "neighbours"}

ROTARY_FORMS = {
    form.function.__name__: form
    for form in (
        RotaryForm(halves, HALF, {}),
        RotaryForm(halves_sliced_and_commuted, HALF, {}),
        RotaryForm(halves_of_whole_tables, SIZE, {}),
        RotaryForm(halves_first_of_whole_tables, SIZE, {}),
        RotaryForm(halves_on_an_axis, HALF, {}),
        RotaryForm(halves_before_the_swap, HALF, {"layout": "bshd"}),
        RotaryForm(halves_widened, HALF, {}),
        RotaryForm(rolled, SIZE, {}),
        RotaryForm(rolled_by_a_signed_table, SIZE, {}),
        RotaryForm(neighbours, HALF, _NEIGHBOURS),
        RotaryForm(neighbours_turned, SIZE, _NEIGHBOURS),
        RotaryForm(neighbours_repeated, HALF, _NEIGHBOURS),
        RotaryForm(neighbours_on_an_axis, HALF, _NEIGHBOURS),
        RotaryForm(neighbours_complex, HALF, _NEIGHBOURS),
        RotaryForm(neighbours_polar, HALF, _NEIGHBOURS),
        RotaryForm(neighbours_by_matrices, HALF, _NEIGHBOURS),
        RotaryForm(halves_by_addcmul, HALF, {}),
        RotaryForm(first_half_turned, HALF, _FIRST),
        RotaryForm(first_half_in_parts, 2, _FIRST),
        RotaryForm(first_neighbours_turned, 2, _FIRST | _NEIGHBOURS),
    )
}

UNLIKE_ROTARY: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "the first negated too late": (
        lambda x, c, s: torch.cat(
            [x[..., :HALF] * c + x[..., HALF:] * s, x[..., HALF:] * c - x[..., :HALF] * s], -1
        ), HALF,
    ),
    "no negation": (
        lambda x, c, s: torch.cat([x[..., :HALF] * c + x[..., HALF:] * s, x[..., HALF:] * c + x[..., :HALF] * s], -1),
        HALF,
    ),
    "halves in each other's place": (
        lambda x, c, s: torch.cat([x[..., HALF:] * c + x[..., :HALF] * s, x[..., :HALF] * c - x[..., HALF:] * s], -1),
        HALF,
    ),
    "a third of the heads' own": (
        lambda x, c, s: torch.cat(
            [x[..., :HALF] * c - x[..., HALF:] * s, x[..., HALF:] * c + x[..., HALF:] * s], -1
        ), HALF,
    ),
    "other heads": (
        lambda x, c, s: torch.cat(
            [x[..., :HALF] * c - x.flip(1)[..., HALF:] * s, x[..., HALF:] * c + x[..., :HALF] * s], -1
        ), HALF,
    ),
    "halves read, neighbours written": (
        lambda x, c, s: torch.stack(
            [x[..., :HALF] * c - x[..., HALF:] * s, x[..., HALF:] * c + x[..., :HALF] * s], -1
        ).flatten(-2), HALF,
    ),
    "neighbours read, halves written": (
        lambda x, c, s: torch.cat([x[..., ::2] * c - x[..., 1::2] * s, x[..., 1::2] * c + x[..., ::2] * s], -1), HALF,
    ),
    "signs of two": (lambda x, c, s: x * c + x.roll(HALF, -1) * signs(-2.0, 2.0) * s, SIZE),
    "signs of another half": (
        lambda x, c, s: x * c + x.roll(HALF, -1) * signs(-1.0, 1.0, -1.0, 1.0) * s, SIZE
    ),
    "rolled by less": (lambda x, c, s: x * c + x.roll(2, -1) * signs(-1.0, 1.0) * s, SIZE),
    "another tensor's rest": (
        lambda x, c, s: torch.cat(
            [x[..., :2] * c - x[..., 2:4] * s, x[..., 2:4] * c + x[..., :2] * s, x[..., 4:] + 1], -1
        ), 2,
    ),
    "the rest first": (
        lambda x, c, s: torch.cat(
            [x[..., 4:], x[..., :2] * c - x[..., 2:4] * s, x[..., 2:4] * c + x[..., :2] * s], -1
        ), 2,
    ),
    "the rest twice": (
        lambda x, c, s: torch.cat(
            [x[..., :2] * c - x[..., 2:4] * s, x[..., 2:4] * c + x[..., :2] * s, x[..., 4:6], x[..., 4:6]], -1
        ), 2,
    ),
}  # fmt: skip


EXPERTS, GROUPS = 16, 4


@dataclass(frozen=True)
class GateForm:
    """A function of ``logits [tokens, EXPERTS]`` and a bias, and the parameters that the kernel must have."""

    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    parameters: dict[str, Any]


def chosen(scores: Tensor, ranks: Tensor, top_k: int = 4) -> tuple[Tensor, Tensor]:
    """The scores of the best ranks."""
    indices = ranks.topk(top_k, dim=-1).indices
    return scores.gather(1, indices), indices


def best_groups(ranks: Tensor) -> Tensor:
    """The two of the groups whose two best experts have the largest sum."""
    return ranks.view(-1, GROUPS, EXPERTS // GROUPS).topk(2, -1).values.sum(-1).topk(2, -1).indices


def limited(ranks: Tensor, keep: Tensor) -> Tensor:
    """Ranks, and minus infinity in groups that are not kept."""
    return ranks.view(-1, GROUPS, EXPERTS // GROUPS).masked_fill(~keep[:, :, None], float("-inf")).view(-1, EXPERTS)


def sorted_scores(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The first of all scores in order."""
    weights, indices = x.softmax(-1).sort(-1, descending=True)
    return weights[:, :4], indices[:, :4]


def sorted_logits(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The first of all logits in order, scored afterwards."""
    best, indices = torch.sort(x, dim=1, descending=True)
    return best[..., :4].softmax(-1), indices[..., :4]


def gathered_logits(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen logits are gathered, and scored afterwards."""
    indices = x.topk(4, -1).indices
    return x.gather(1, indices).softmax(-1), indices


def taken_along(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """An operator that allows for negative indices."""
    scores = x.sigmoid()
    indices = (scores + bias).topk(4, -1).indices
    return torch.take_along_dim(scores, indices, 1), indices


def one_hot_groups(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Kept groups by ``one_hot``."""
    scores = x.sigmoid()
    ranks = scores + bias
    return chosen(scores, limited(ranks, torch.nn.functional.one_hot(best_groups(ranks), GROUPS).sum(1).bool()))


def one_hot_groups_counted(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Kept groups are those that were chosen more often than never."""
    scores = x.sigmoid()
    ranks = scores + bias
    return chosen(scores, limited(ranks, torch.nn.functional.one_hot(best_groups(ranks), GROUPS).sum(1) > 0))


def compared_groups(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Kept groups by a comparison with all."""
    scores = x.sigmoid()
    ranks = scores + bias
    kept = (best_groups(ranks)[:, :, None] == torch.arange(GROUPS)).to(torch.int64).amax(1)
    return chosen(scores, limited(ranks, kept != 0))


def best_of_groups(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek-V2: groups ranked by their best expert alone."""
    scores = x.softmax(-1)
    best = scores.view(-1, GROUPS, EXPERTS // GROUPS).max(-1).values.topk(2, -1, sorted=False)[1]
    mask = torch.zeros_like(scores[:, :GROUPS]).scatter_(1, best, 1)
    wide = mask.unsqueeze(-1).expand(-1, GROUPS, EXPERTS // GROUPS).reshape(-1, EXPERTS)
    return scores.masked_fill(~wide.bool(), 0.0).topk(4, -1, sorted=False)


def best_of_groups_with_bias(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same with a bias for the choice."""
    scores = x.sigmoid()
    ranks = scores + bias
    best = ranks.unflatten(1, (GROUPS, -1)).amax(-1).topk(2, -1)[1]
    keep = torch.zeros_like(ranks[:, :GROUPS], dtype=torch.bool).scatter(1, best, True)
    return chosen(scores, torch.where(keep.repeat_interleave(EXPERTS // GROUPS, 1), ranks, float("-inf")))


_LIMIT = {"num_groups": GROUPS, "top_groups": 2}
_SIGMOID = {"scoring": "sigmoid", "bias": True}

GATE_FORMS = {
    form.function.__name__: form
    for form in (
        GateForm(sorted_scores, {"scoring": "softmax"}),
        GateForm(sorted_logits, {"scoring": "softmax", "normalize": True}),
        GateForm(gathered_logits, {"scoring": "softmax", "normalize": True}),
        GateForm(taken_along, _SIGMOID),
        GateForm(one_hot_groups, _SIGMOID | _LIMIT),
        GateForm(one_hot_groups_counted, _SIGMOID | _LIMIT),
        GateForm(compared_groups, _SIGMOID | _LIMIT),
        GateForm(best_of_groups, {"scoring": "softmax", "group_ranks": 1, "excluded_rank": "-inf"} | _LIMIT),
        GateForm(best_of_groups_with_bias, {"group_ranks": 1} | _SIGMOID | _LIMIT),
    )
}


def ascending(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The least of all scores."""
    weights, indices = x.softmax(-1).sort(-1)
    return weights[:, :4], indices[:, :4]


def later_of_the_sorted(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """The second to the fifth."""
    weights, indices = x.softmax(-1).sort(-1, descending=True)
    return weights[:, 1:5], indices[:, 1:5]


def kept_and_left_out_exchanged(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The groups that were not chosen."""
    scores = x.sigmoid()
    ranks = scores + bias
    return chosen(scores, limited(ranks, torch.nn.functional.one_hot(best_groups(ranks), GROUPS).sum(1) == 0))


def next_groups(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The groups before those that were chosen."""
    scores = x.sigmoid()
    ranks = scores + bias
    kept = (best_groups(ranks)[:, :, None] == torch.arange(1, GROUPS + 1)).to(torch.int64).amax(1)
    return chosen(scores, limited(ranks, kept != 0))


def least_of_groups(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Groups ranked by their worst expert."""
    scores = x.sigmoid()
    ranks = scores + bias
    best = ranks.unflatten(1, (GROUPS, -1)).amin(-1).topk(2, -1)[1]
    keep = torch.zeros_like(ranks[:, :GROUPS], dtype=torch.bool).scatter(1, best, True)
    return chosen(scores, torch.where(keep.repeat_interleave(EXPERTS // GROUPS, 1), ranks, float("-inf")))


UNLIKE_GATES = {
    function.__name__: function
    for function in (ascending, later_of_the_sorted, kept_and_left_out_exchanged, next_groups, least_of_groups)
}
