"""The rule for rotary position embedding: how it may be written, where heads may lie, and what comes before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.rotary import ROTARY

RULES = (ROTARY,)
BATCH, SEQUENCE, HEADS, SIZE = 5, 6, 3, 8


def turned(x: Tensor) -> Tensor:
    """As transformers writes it."""
    first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-second, first), dim=-1)


def heads_last(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Heads ``[batch, sequence, heads, size]``, and angles for each position."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, SEQUENCE, HEADS, SIZE, generator=generator)
    cos, sin = (torch.randn(SEQUENCE, SIZE, generator=generator) for _ in range(2))
    return x.to(dtype), cos.to(dtype), sin.to(dtype)


def swapped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads before the sequence, as attention wants them."""
    x = x.transpose(1, 2)
    return x * cos[None, None] + turned(x) * sin[None, None]


WAYS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "heads last": (lambda x, c, s: x * c[:, None] + turned(x) * s[:, None], "bshd"),
    "heads swapped": (swapped, "bshd"),
    "heads first": (lambda x, c, s: (y := x.transpose(1, 2) * 2) * c + turned(y) * s, "bhsd"),
    "commuted": (lambda x, c, s: s[:, None] * turned(x) + c[:, None] * x, "bshd"),
    "chunks": (
        lambda x, c, s: x * c[:, None] + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * s[:, None],
        "bshd",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_kernel_for_every_way_to_write_it(way: str) -> None:
    """A swap of axes before it moves behind it, where attention sees through it."""
    function, layout = WAYS[way]
    (found,) = checked_substitutions(imported(function, *heads_last(), symbolic=(0,)), *heads_last(), rules=RULES)
    parameters = found.parameters
    assert (parameters.heads, parameters.size, parameters.layout) == (HEADS, SIZE, layout)
    assert parameters.shared_angles


def test_each_sequence_may_have_its_own_angles() -> None:
    """Where positions differ between the sequences of a batch."""
    x, *_ = heads_last()
    cos, sin = (torch.randn(BATCH, SEQUENCE, SIZE) for _ in range(2))
    module = imported(lambda x, c, s: x * c[:, :, None] + turned(x) * s[:, :, None], x, cos, sin)
    (found,) = checked_substitutions(module, x, cos, sin, rules=RULES)
    assert not found.parameters.shared_angles


def widened(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32, and back."""
    wide = x.float()
    return (wide * cos.float()[:, None] + turned(wide) * sin.float()[:, None]).to(x.dtype)


@pytest.mark.parametrize(("way", "angle_dtype"), [(swapped, None), (widened, "float32")])
def test_sixteen_bits_are_computed_in_float32(way: Callable[..., Tensor], angle_dtype: str | None) -> None:
    """And rounded once, so that the result is nearer than the graph's own."""
    inputs = heads_last(torch.bfloat16)
    (found,) = checked_substitutions(imported(way, *inputs, symbolic=(0,)), *inputs, rules=RULES, rtol=2**-6)
    assert found.parameters.dtype == "bfloat16" and found.parameters.angle_dtype == angle_dtype


UNLIKE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "the halves not negated": lambda x, c, s: x * c[:, None] + x.roll(SIZE // 2, -1) * s[:, None],
    "the other half negated": lambda x, c, s: (
        x * c[:, None] + torch.cat([x[..., SIZE // 2 :], -x[..., : SIZE // 2]], -1) * s[:, None]
    ),
    "each half in its own place": lambda x, c, s: (
        x * c[:, None] + torch.cat([-x[..., : SIZE // 2], x[..., SIZE // 2 :]], -1) * s[:, None]
    ),
    "unequal parts": lambda x, c, s: x * c[:, None] + torch.cat([-x[..., 2:], x[..., :2]], -1) * s[:, None],
    "another tensor turned": lambda x, c, s: x * c[:, None] + turned(x + 1) * s[:, None],
    "angles for each head": lambda x, c, s: x * c[:, None].tile(1, HEADS, 1) + turned(x) * s[:, None].tile(1, HEADS, 1),
    "a difference": lambda x, c, s: x * c[:, None] - turned(x) * s[:, None],
}


@pytest.mark.parametrize("form", UNLIKE)
def test_what_only_looks_alike_is_left_alone(form: str) -> None:
    """No kernel."""
    assert substituted(imported(UNLIKE[form], *heads_last(), symbolic=(0,)), RULES)[1].substitutions == ()


WEIGHT = 1 + torch.randn(SIZE, generator=torch.Generator().manual_seed(1)) / 4
EPSILON = 0.01


def normalized(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """As transformers writes it: in float32, rounded before the weight."""
    wide = x.float()
    heads = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)
    return heads if weight is None else weight * heads


def embedded(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads before the sequence."""
    return x * cos + turned(x) * sin


NORMALIZED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], str]] = {
    "before the swap": (lambda x, c, s, w: embedded(normalized(x, w).transpose(1, 2), c, s), "bshd"),
    "after the swap": (lambda x, c, s, w: embedded(normalized(x.transpose(1, 2), w), c, s), "bshd"),
    "no swap": (lambda x, c, s, w: embedded(normalized(x, w), c[:, None], s[:, None]), "bshd"),
    "heads first": (lambda x, c, s, w: embedded(normalized(x.transpose(1, 2) * 2, w), c, s), "bhsd"),
    "rows": (
        lambda x, c, s, w: embedded(normalized(x.reshape(-1, SIZE), w).view(x.shape).transpose(1, 2), c, s), "bshd"
    ),
    "wide weight": (
        lambda x, c, s, w: embedded((normalized(x.float()) * (0.5 + w.float())).to(x.dtype).transpose(1, 2), c, s),
        "bshd",
    ),
    "all in float32": (
        lambda x, c, s, w: embedded(normalized(x.float(), w.float()).transpose(1, 2), c, s).to(x.dtype), "bshd"
    ),
    "no weight": (lambda x, c, s, w: embedded(normalized(x).transpose(1, 2), c, s), "bshd"),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", NORMALIZED)
def test_normalization_of_heads_goes_with_it(way: str, dtype: torch.dtype) -> None:
    """Wherever it stands; with a weight of the tensors' dtype or a wider one, and without."""
    function, layout = NORMALIZED[way]
    inputs = (*heads_last(dtype), WEIGHT.to(dtype))
    module = imported(function, *inputs, symbolic=(0,))
    rtol = 1e-5 if dtype == torch.float32 else 2**-6
    (found,) = checked_substitutions(module, *inputs, rules=(ROTARY, NORMALIZATION), rtol=rtol)
    parameters = found.parameters
    assert (parameters.epsilon, parameters.layout, parameters.heads) == (EPSILON, layout, HEADS)
    assert parameters.weight == (way != "no weight")
    is_wide = way == "wide weight" and dtype == torch.bfloat16
    assert parameters.weight_dtype == ("float32" if is_wide else None)


def read_twice(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The normalized heads are a result, too."""
    heads = normalized(x, weight)
    return embedded(heads, cos[:, None], sin[:, None]), heads


def layer_normalized(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    """With the mean taken off."""
    return embedded(torch.nn.functional.layer_norm(x, (SIZE,), weight, eps=EPSILON), cos[:, None], sin[:, None])


def shifted(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    """With a bias."""
    return embedded(normalized(x, weight) + weight, cos[:, None], sin[:, None])


def normalized_together(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    """All heads of a token as one."""
    return embedded(normalized(x.flatten(2)).view(x.shape), cos[:, None], sin[:, None])


def normalized_in_parts(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    """Each half of a head."""
    return embedded(normalized(x.unflatten(-1, (2, -1))).flatten(3), cos[:, None], sin[:, None])


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", [read_twice, layer_normalized, shifted, normalized_together, normalized_in_parts])
def test_other_normalization_stays_a_kernel_of_its_own(function: Callable[..., object]) -> None:
    """Heads are turned all the same."""
    inputs = (*heads_last(), WEIGHT)
    module = imported(function, *inputs, symbolic=(0,))
    rotary, norm = checked_substitutions(module, *inputs, rules=(ROTARY, NORMALIZATION))
    assert (rotary.kernel, rotary.parameters.epsilon, norm.kernel) == ("rotary", None, "normalization")
