"""Rotary embedding in other forms than one sum over whole heads, and what only looks like it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tests.passes.rotary_gate_and_expert_forms import (
    BATCH,
    HALF,
    HEADS,
    ROTARY_FORMS,
    SEQUENCE,
    SIZE,
    UNLIKE_ROTARY,
    halves,
    neighbours,
)
from tkc.kernels import Target
from tkc.kernels.rotary.reference import rotary
from tkc.passes.rules.fused_rotary import FUSED_ROTARY
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.rotary import ROTARY
from tkc.passes.substitute_kernels import SubstituteKernels


def inputs(channels: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Heads before the sequence, and tables of different numbers everywhere."""
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(BATCH, HEADS, SEQUENCE, SIZE, generator=generator)
    cos, sin = (torch.randn(SEQUENCE, channels, generator=generator) for _ in range(2))
    return x.to(dtype), cos.to(dtype), sin.to(dtype)


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROTARY_FORMS)
def test_every_form_is_the_kernel(name: str, dtype: torch.dtype) -> None:
    """With its numbers, and nothing left of it."""
    form = ROTARY_FORMS[name]
    x, cos, sin = inputs(form.channels, dtype)
    if form.parameters.get("layout") == "bshd":
        x = x.transpose(1, 2).contiguous()
    module = imported(form.function, x, cos, sin, symbolic=(0,))
    rtol = 1e-6 if dtype == torch.float32 else 2**-6
    (found,) = checked_substitutions(module, x, cos, sin, rules=(ROTARY,), rtol=rtol)
    expected = {"heads": HEADS, "size": SIZE, "layout": "bhsd", "pairs": "halves", "turned": None} | form.parameters
    assert asdict(found.parameters).items() >= (expected | {"dtype": str(dtype).removeprefix("torch.")}).items()
    script = substituted(module, (ROTARY,))[0]["main"].script()
    assert "R.multiply" not in script or name.startswith("rolled_by")


@pytest.mark.parametrize("name", UNLIKE_ROTARY)
def test_what_only_looks_alike_keeps_its_operators(name: str) -> None:
    """Nothing is substituted."""
    function, channels = UNLIKE_ROTARY[name]
    module = imported(function, *inputs(channels), symbolic=(0,))
    assert substituted(module, (ROTARY,))[1].substitutions == ()


def test_numbers_that_are_none_stay_apart() -> None:
    """NaN and infinity in one channel reach their own pair, and in what does not turn nothing else."""
    x, cos, sin = inputs(HALF)
    x[0, 0, 0, 1], x[1, 1, 2, HALF + 2] = torch.nan, torch.inf
    for function in (halves, neighbours):
        (found,) = substituted(imported(function, x, cos, sin, symbolic=(0,)), (ROTARY,))[1].substitutions
        whole = [torch.cat([t, t], -1) if function is halves else t.repeat_interleave(2, -1) for t in (cos, sin)]
        (result,) = rotary(found.parameters, x, *whole)
        torch.testing.assert_close(result, function(x, cos, sin), equal_nan=True)


def test_queries_and_keys_of_half_tables_are_one_call() -> None:
    """Tables that are made twice are the same tables."""
    x, cos, sin = inputs(HALF)

    def both(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return halves(q, c, s), halves(k, c, s)

    arguments = (x, x[:, :1] * 2, cos, sin)
    module = imported(both, *arguments, symbolic=(0, 1))
    (found,) = checked_substitutions(module, *arguments, rules=(FUSED_ROTARY, ROTARY))
    assert (found.parameters.heads, found.parameters.key_heads) == (HEADS, 1)


def test_neighbours_of_normalized_heads() -> None:
    """The normalization goes along; where only a part of a head turns, it stays a kernel of its own."""
    x, cos, sin = inputs(HALF)

    def whole(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        return neighbours(torch.nn.functional.rms_norm(x, (SIZE,), None, 1e-3), c, s)

    def part(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        y = torch.nn.functional.rms_norm(x, (SIZE,), None, 1e-3)
        return torch.cat([halves(y[..., :HALF], c[:, :2], s[:, :2]), y[..., HALF:]], -1)

    rules = (ROTARY, NORMALIZATION)
    (found,) = checked_substitutions(imported(whole, x, cos, sin, symbolic=(0,)), x, cos, sin, rules=rules)
    assert (found.parameters.pairs, found.parameters.epsilon) == ("neighbours", 1e-3)
    found, norm = checked_substitutions(imported(part, x, cos, sin, symbolic=(0,)), x, cos, sin, rules=rules)
    assert (found.parameters.turned, found.parameters.epsilon, norm.kernel) == (HALF, None, "normalization")


def test_a_part_that_is_read_elsewhere_stays() -> None:
    """The turned first half is a result of its own, too."""
    x, cos, sin = inputs(HALF)

    def function(x: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        first = a * c - b * s
        return torch.cat([first, b * c + a * s], -1), first

    checked_substitutions(imported(function, x, cos, sin, symbolic=(0,)), x, cos, sin, rules=(ROTARY,))


def test_on_the_gpu_it_pays() -> None:
    """With ``auto``, too."""
    x, cos, sin = inputs(HALF, torch.bfloat16)
    module = imported(neighbours, x, cos, sin, symbolic=(0,))
    _, report = SubstituteKernels(Target.parse("cuda:sm_90a"), "auto", (ROTARY,))(module)
    assert [found.kernel for found in report.substitutions] == ["rotary"]
