"""What only looks like RMS normalization quantized to FP8, and keeps its operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.quantized_norms import (
    CHANNELS,
    EPSILON,
    FP8,
    RULES,
    compared,
    found,
    llama,
    normal,
    per_group,
    per_token,
    scale_of,
)
from tests.passes.reference_execution import imported, substituted
from tkc.kernels.normalization.parameters import NormalizationParameters


def groups_of_64(y: Tensor) -> Tensor:
    """One scale for 64 channels."""
    groups = y.unflatten(-1, (-1, 64))
    return (groups / scale_of(groups)).to(FP8)


def of_the_tensor(y: Tensor) -> Tensor:
    """One dynamic scale for the whole tensor, which no token has alone."""
    return (y / (y.abs().max().clamp(min=1e-4) / 448)).clamp(-448, 448).to(FP8)


def per_channel(y: Tensor) -> Tensor:
    """One scale a channel."""
    return (y / (y.abs().amax(0, keepdim=True).clamp(min=1e-4) / 448)).to(FP8)


# What is quantized of y, a normalization that has a kernel, and a part of the reason.
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "another limit": (lambda y, s: (y / scale_of(y, limit=240.0)).to(FP8), "divided by 240"),
    "another format's limit": (lambda y, s: (y / scale_of(y)).to(torch.float8_e5m2), "divided by 448"),
    "a scale that is changed": (lambda y, s: (y / (scale_of(y) * 2)).to(FP8), "divided by 224"),
    "clamped inside": (lambda y, s: (y / scale_of(y)).clamp(-240, 240).to(FP8), "it clamps to [-240"),
    "scales of other values": (
        lambda y, s: (y / scale_of(y + 1)).clamp(-448, 448).to(FP8),
        "scales come from other values",
    ),
    "a signed maximum": (
        lambda y, s: (y / (y.amax(-1, keepdim=True).clamp(min=1e-4) / 448)).clamp(-448, 448).to(FP8),
        "maxima that are not of magnitudes",
    ),
    "one dynamic scale": (lambda y, s: of_the_tensor(y), "share scales along the axes [0, 1]"),
    "a scale per channel": (lambda y, s: per_channel(y), "share scales along the axes [0]"),
    "groups of 64": (lambda y, s: groups_of_64(y), "share scales along the axes [2]"),
    "static, not clamped": (lambda y, s: (y / s).to(FP8), "is not clamped"),
    "static, clamped inside": (lambda y, s: (y / s).clamp(-240, 240).to(FP8), "it clamps to [-240"),
    "static, clamped outside": (lambda y, s: (y / s).clamp(-500, 500).to(FP8), "it clamps outside the range"),
    "static, one bound": (lambda y, s: (y / s).clamp(max=448).to(FP8), ""),
    "a scale of the values": (
        lambda y, s: (y / (y.square().mean() + 1)).clamp(-448, 448).to(FP8),
        "is also one of its inputs",
    ),
    "the normalized values too": (lambda y, s: (*per_token(y), y), "is needed elsewhere too"),
    "the maxima too": (
        lambda y, s: (
            lambda amax: ((y / (amax.clamp(min=1e-4) / 448)).to(FP8), amax + 1)
        )(y.abs().amax(-1, keepdim=True)),
        "is needed elsewhere too",
    ),
    "two quantizations": (lambda y, s: (*per_token(y), *per_group(y)), "is needed elsewhere too"),
    "two static scales": (
        lambda y, s: [(y / one).clamp(-448, 448).to(FP8) for one in (s, s + 1)],
        "is needed elsewhere too",
    ),
    "two elements": (lambda y, s: (y / torch.cat([s, s]).repeat(128)).clamp(-448, 448).to(FP8), ""),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", REFUSED)
def test_other_quantization_leaves_plain_normalization(form: str) -> None:
    """That kernel still serves, the numbers are right, and the report says why not the other."""
    quantize, reason = REFUSED[form]
    inputs = normal(6, CHANNELS), normal(CHANNELS, seed=1), torch.tensor([0.05])
    report = compared(lambda x, w, s: quantize(llama(x, w), s), *inputs)
    assert {call.kernel for call in report.substitutions} == {"normalization"}
    refused = [refusal.reason for refusal in report.refusals if refusal.rule == "quantized_rms_norm"]
    assert any(reason in told for told in refused) if reason else refused == []


UNLIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over tokens": lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + EPSILON) * w,
    "a mean without squares": lambda x, w: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + EPSILON) * w,
    "a sum of squares": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPSILON) * w,
    "cubes": lambda x, w: x * torch.rsqrt(x.abs().pow(3).mean(-1, keepdim=True) + EPSILON) * w,
    "epsilon outside the root": lambda x, w: x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + EPSILON) * w,
    "another tensor's statistics": lambda x, w: x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + EPSILON) * w,
    "the root, not its inverse": lambda x, w: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * w,
    "layer normalization": lambda x, w: F.layer_norm(x, (CHANNELS,), w, None, EPSILON),
    "a weight that is added": lambda x, w: llama(x, w) + w,
    "an activation after it": lambda x, w: F.silu(llama(x, w)),
    "two weights": lambda x, w: llama(x, w) * w,
}


TOLD = {"layer normalization": "takes off the mean", "a weight that is added": "adds a bias"}


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", UNLIKE)
def test_what_only_looks_alike_is_left_alone(form: str) -> None:
    """The quantization stays as it is written, and so do the numbers; a near miss is told."""
    inputs = normal(6, CHANNELS), normal(CHANNELS, seed=1)
    report = compared(lambda x, w: per_token(UNLIKE[form](x, w)), *inputs)
    assert "quantized_rms_norm" not in {call.kernel for call in report.substitutions}
    refused = [refusal.reason for refusal in report.refusals if refusal.rule == "quantized_rms_norm"]
    assert [TOLD[form] in reason for reason in refused] == [True] if form in TOLD else refused == []


def test_a_weight_plus_another_number_stays_outside() -> None:
    """It is computed before the call; so is one plus a 16-bit weight, which is rounded."""
    x, w = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (call,) = found(lambda x, w: per_token(llama(x, 2.0 + w)), x, w)
    assert not call.parameters.weight_offset
    x, w = x.bfloat16(), w.bfloat16()
    (call,) = found(lambda x, w: per_token(llama(x, 1.0 + w)), x, w)
    assert not call.parameters.weight_offset and call.parameters.weight_dtype == "bfloat16"


def test_a_broadcast_term_is_no_residual() -> None:
    """A sum with one row for all tokens stays an addition."""
    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (call,) = found(lambda x, w: per_token(llama(x + w, w)), *inputs)
    assert call.kernel == "quantized_rms_norm" and not call.parameters.residual


def test_groups_that_cross_tokens_are_refused() -> None:
    """Rows of 128 of tokens of 192."""
    inputs = normal(4, 192), normal(192, seed=1)
    (call,) = found(lambda x, w: act_quant_of_rows(llama(x, w)), *inputs, symbolic=())
    assert call.parameters == NormalizationParameters(192, "float32", "rms", EPSILON)


def act_quant_of_rows(y: Tensor) -> Tensor:
    """DeepSeek's quantization of rows that are no tokens."""
    rows = y.reshape(-1, 128)
    return (rows / scale_of(rows)).to(FP8).view(y.shape)


def test_symbolic_channels_are_refused() -> None:
    """A kernel is built for a number of channels."""
    module = imported(lambda x: per_token(F.rms_norm(x.T, (x.shape[0],), None, EPSILON)), normal(5, CHANNELS))
    _, report = substituted(module, RULES)
    assert report.substitutions == ()
    assert any("number of channels" in refused.reason for refused in report.refusals)
