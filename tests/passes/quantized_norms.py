"""RMS normalizations and quantizations as models write them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.quantized_rms_norm import QUANTIZED_RMS_NORM
from tkc.passes.rules.rule import Rule
from tkc.passes.substitute_kernels import Substitution, SubstitutionReport

RULES = (QUANTIZED_RMS_NORM, NORMALIZATION)
FP8 = torch.float8_e4m3fn
CHANNELS = 256
EPSILON = 1e-6


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers off zero."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def compared(
    function: Callable[..., Any],
    *inputs: Tensor,
    symbolic: Collection[int] | None = None,
    rules: Sequence[Rule[Any]] = RULES,
) -> SubstitutionReport:
    """What became of ``function``, which must compute what PyTorch does.

    Of each result's largest magnitude, 0.08 is the step of FP8's mantissa.
    """
    module, report = substituted(imported(function, *inputs, symbolic=symbolic), rules)
    results = function(*inputs)
    wanted = [results] if isinstance(results, Tensor) else list(results)
    for one, other in zip(evaluated(module, *inputs), wanted, strict=True):
        assert one.dtype == other.dtype
        one, other = one.float(), other.float()
        torch.testing.assert_close(one, other, rtol=0, atol=0.08 * other.abs().max().item())
    return report


def found(
    function: Callable[..., Any],
    *inputs: Tensor,
    symbolic: Collection[int] | None = None,
    rules: Sequence[Rule[Any]] = RULES,
) -> list[Substitution]:
    """The substitutions of :func:`compared`."""
    return list(compared(function, *inputs, symbolic=symbolic, rules=rules).substitutions)


def llama(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama and DeepSeek write it: in float32, rounded before the weight."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def scale_of(values: Tensor, minimum: float | None = 1e-4, limit: float = 448.0) -> Tensor:
    """The largest magnitude of each row, at least ``minimum``, over ``limit``."""
    amax = values.abs().amax(-1, keepdim=True)
    return (amax if minimum is None else amax.clamp(min=minimum)) / limit


def per_token(y: Tensor) -> tuple[Tensor, Tensor]:
    """One scale a token."""
    values = y.float()
    scale = scale_of(values)
    return (values / scale).clamp(-448, 448).to(FP8), scale


def per_group(y: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for 128 channels of a token."""
    groups = y.float().unflatten(-1, (-1, 128))
    scale = scale_of(groups)
    return (groups / scale).clamp(-448, 448).to(FP8).flatten(-2), scale.squeeze(-1)
