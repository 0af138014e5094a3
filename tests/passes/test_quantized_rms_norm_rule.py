"""RMS normalization quantized to FP8 is found however it is written, and only where the kernel computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    found,
    llama,
    normal,
    per_group,
    per_token,
    scale_of,
)
from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.passes.rules.matmul import MATMUL
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.quantized_rms_norm import QUANTIZED_RMS_NORM
from tkc.passes.rules.scaled_matmul import SCALED_MATMUL
from tkc.passes.rules.table import RULES as ALL_RULES


def expected(**options: Any) -> QuantizedRMSNormParameters:
    """Parameters that most of the tests share."""
    common = {"channels": CHANNELS, "dtype": "float32", "epsilon": EPSILON, "weight_dtype": "float32"}
    return QuantizedRMSNormParameters(**{**common, **options})  # type: ignore[arg-type]


def assert_equal(actual: QuantizedRMSNormParameters, wanted: QuantizedRMSNormParameters) -> None:
    """Equal, the smallest amax but for rounding."""
    assert actual.minimum_amax == pytest.approx(wanted.minimum_amax, rel=1e-5)
    assert actual == replace(wanted, minimum_amax=actual.minimum_amax)


def gemma(x: Tensor, weight: Tensor) -> Tensor:
    """A weight that is an offset to one, and rounding at the end."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON) * (1.0 + weight.float())).type_as(x)


NORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], dict[str, Any]]] = {
    "llama": (llama, {}),
    "gemma": (gemma, {"weight_offset": True}),
    "operator": (lambda x, w: F.rms_norm(x, (CHANNELS,), w, EPSILON), {}),
    "dividing": (lambda x, w: x / torch.sqrt(EPSILON + (x * x).mean(-1, keepdim=True)) * w, {}),
    "no weight": (
        lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON),
        {"weight_dtype": None},
    ),
}


def small_minimum(y: Tensor) -> tuple[Tensor, Tensor]:
    """A bound that only keeps from dividing by zero, and no clamp."""
    values = y.float()
    scale = scale_of(values, 1e-12)
    return (values / scale).to(FP8), scale.squeeze(-1)


def by_reciprocal(y: Tensor) -> tuple[Tensor, Tensor]:
    """The product with 448 / amax, and amax / 448 as the scale."""
    amax = y.float().abs().amax(-1, keepdim=True).clamp(min=1e-4)
    return (y.float() * (448.0 / amax)).clamp(-448, 448).to(FP8), amax / 448.0


def act_quant(y: Tensor) -> tuple[Tensor, Tensor]:
    """As DeepSeek quantizes activations: no bound at all, over rows of 128."""
    groups = y.reshape(-1, 128).float()
    scale = groups.abs().amax(-1) / 448.0
    return (groups / scale[:, None]).to(FP8).view(y.shape), scale.view(*y.shape[:-1], -1)


def power_of_two(y: Tensor) -> tuple[Tensor, Tensor]:
    """Scales rounded up to powers of two."""
    groups = y.float().unflatten(-1, (-1, 128))
    scale = 2 ** torch.ceil(torch.log2(scale_of(groups)))
    return (groups / scale).to(FP8).flatten(-2), scale.squeeze(-1)


def e5m2(y: Tensor) -> tuple[Tensor, Tensor]:
    """The format with five bits of exponent."""
    scale = scale_of(y.float(), limit=57344.0)
    return (y.float() / scale).to(torch.float8_e5m2), scale


DYNAMIC: dict[Callable[[Tensor], tuple[Tensor, Tensor]], dict[str, Any]] = {
    per_token: {"scale": "token"},
    small_minimum: {"scale": "token", "minimum_amax": 1e-12},
    by_reciprocal: {"scale": "token"},
    per_group: {"scale": "group"},
    act_quant: {"scale": "group", "minimum_amax": 0.0},
    power_of_two: {"scale": "group", "power_of_two_scales": True},
    e5m2: {"scale": "token", "quantized_dtype": "float8_e5m2"},
}


@pytest.mark.parametrize("norm", NORMS)
def test_every_way_to_write_the_normalization(norm: str) -> None:
    """Quantized per group, with a symbolic number of tokens."""
    function, options = NORMS[norm]
    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (call,) = found(lambda x, w: per_group(function(x, w)), *inputs)
    assert (call.rule, call.count) == ("quantized_rms_norm", 1)
    assert_equal(call.parameters, expected(scale="group", **options))


@pytest.mark.parametrize("quantize", DYNAMIC, ids=lambda f: f.__name__)
def test_every_dynamic_scale(quantize: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Values and scales of a sequence come from one kernel call."""
    inputs = normal(3, 2, CHANNELS), normal(CHANNELS, seed=1)
    (call,) = found(lambda x, w: quantize(llama(x, w)), *inputs)
    assert (call.rule, call.count) == ("quantized_rms_norm", 1)
    assert_equal(call.parameters, expected(**DYNAMIC[quantize]))


@pytest.mark.parametrize("norm", ["llama", "gemma", "no weight"])
def test_one_token_that_is_known_when_compiling(norm: str) -> None:
    """As a decode step has; each value and the weight are rows then."""
    function, options = NORMS[norm]
    (call,) = found(lambda x, w: per_group(function(x, w)), normal(1, CHANNELS), normal(CHANNELS, seed=1), symbolic=())
    assert_equal(call.parameters, expected(scale="group", **options))


STATIC: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "divided": (lambda y, s: (y / s).clamp(-448, 448).to(FP8), False),
    "divided in float32": (lambda y, s: (y.float() / s.float()).clamp(min=-448, max=448).to(FP8), False),
    "times the reciprocal": (lambda y, s: (y * s.reciprocal()).clamp(-448, 448).to(FP8), False),
    "times one over it": (lambda y, s: ((1.0 / s) * y).clamp(-448, 448).to(FP8), False),
    "times": (lambda y, s: (y * s).clamp(-448, 448).to(FP8), True),
    "a number": (lambda y, s: (y / 0.01).clamp(-448, 448).to(FP8), False),
}


@pytest.mark.parametrize(("form", "rank"), [*((form, 1) for form in STATIC), ("divided", 0), ("times", 0)])
def test_static_scales(form: str, rank: int) -> None:
    """One number for the whole tensor; some values are clamped."""
    quantize, reciprocal = STATIC[form]
    scale = torch.tensor(300.0 if reciprocal else 0.004).reshape([1] * rank)
    inputs = normal(3, 2, CHANNELS), normal(CHANNELS, seed=1), scale
    (call,) = found(lambda x, w, s: quantize(llama(x, w), s), *inputs)
    assert call.parameters == expected(scale="tensor", reciprocal=call.parameters.reciprocal)
    assert call.parameters.reciprocal == reciprocal or form == "a number"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_read(dtype: torch.dtype) -> None:
    """The casts become the kernel's own; a weight in float32 stays that."""
    name = str(dtype).removeprefix("torch.")
    x = normal(5, CHANNELS, dtype=dtype)
    for weight, function in ((normal(CHANNELS, seed=1, dtype=dtype), llama), (normal(CHANNELS, seed=1), gemma)):
        (call,) = found(lambda x, w, norm=function: per_group(norm(x, w)), x, weight)
        assert_equal(
            call.parameters,
            expected(
                scale="group",
                dtype=name,
                weight_dtype="float32" if function is gemma else name,
                weight_offset=function is gemma,
            ),
        )


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("quantize", [per_group, per_token], ids=lambda f: f.__name__)
def test_takes_the_sum_before_it(kept: bool, quantize: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """A sum that something else reads is an output too."""

    def block(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        total = x + y
        out = quantize(llama(total, weight))
        return (*out, total * 2) if kept else out

    inputs = normal(5, 3, CHANNELS), normal(5, 3, CHANNELS, seed=1), normal(CHANNELS, seed=2)
    (call,) = found(block, *inputs)
    assert call.parameters.residual and call.parameters.keeps_sum == kept


def test_a_cast_of_the_sum_may_be_read_elsewhere() -> None:
    """It is computed of the sum that the kernel returns."""

    def block(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        wide = (x + y).float()
        out = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON) * weight
        return (*per_token(out), wide * 2)

    inputs = (*(normal(5, CHANNELS, seed=seed, dtype=torch.bfloat16) for seed in (0, 1)), normal(CHANNELS, seed=2))
    (call,) = found(block, *inputs)
    assert call.parameters.dtype == "bfloat16" and call.parameters.keeps_sum


def test_the_sum_with_a_static_scale() -> None:
    """The kernel has two outputs then, no scales between them."""

    def block(x: Tensor, y: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        return (llama(total, weight) / scale).clamp(-448, 448).to(FP8), total

    inputs = normal(5, CHANNELS), normal(5, CHANNELS, seed=1), normal(CHANNELS, seed=2), torch.tensor([0.02])
    (call,) = found(block, *inputs, symbolic=(0, 1))
    assert call.parameters.residual and call.parameters.keeps_sum


def test_equal_quantizations_are_one_call() -> None:
    """Each projection of a layer quantizes its input for itself."""

    def layer(x: Tensor, w: Tensor) -> list[Tensor]:
        y = llama(x, w)
        return [part for number in range(3) for part in (lambda q, s: (q.float() * (number + 1), s))(*per_token(y))]

    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (call,) = found(layer, *inputs)
    assert call.count == 1 and call.parameters.scale == "token"


def test_equal_static_quantizations_are_one_call() -> None:
    """By one and the same scale."""

    def layer(x: Tensor, w: Tensor, s: Tensor) -> list[Tensor]:
        y = llama(x, w)
        return [(y / s).clamp(-448, 448).to(FP8).float() * (number + 1) for number in range(3)]

    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1), torch.tensor([0.02])
    (call,) = found(layer, *inputs)
    assert call.count == 1 and call.parameters.scale == "tensor"


def dequantized_matmul(x: Tensor, residual: Tensor, norm: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Residual, normalization, and a projection in FP8."""
    total = x + residual
    groups = llama(total, norm).unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    rows = ((groups / scale).clamp(-448.0, 448.0).to(FP8).float() * scale).flatten(-2)
    return F.linear(rows, w.float() * t.repeat_interleave(128, 0).repeat_interleave(128, 1)), total


def test_feeds_the_scaled_matmul() -> None:
    """Between the two kernels there is nothing but the FP8 numbers and their scales."""
    w, t = normal(128, CHANNELS, seed=3).to(FP8), normal(1, 2, seed=4).abs()
    inputs = normal(6, CHANNELS), normal(6, CHANNELS, seed=1), normal(CHANNELS, seed=2), w, t
    rules = (SCALED_MATMUL, MATMUL, *RULES)
    calls = found(dequantized_matmul, *inputs, symbolic=(0, 1), rules=rules)
    assert {call.kernel: call.parameters for call in calls} == {
        "matmul.scaled": ScaledMatmulParameters(128, CHANNELS, "float32"),
        "quantized_rms_norm": expected(
            scale="group",
            residual=True,
            keeps_sum=True,
            minimum_amax=calls[1].parameters.minimum_amax,
        ),
    }


def test_sees_the_graph_before_plain_normalization() -> None:
    """And after matmuls, which take a residual into their epilogue."""
    assert ALL_RULES.index(MATMUL) < ALL_RULES.index(QUANTIZED_RMS_NORM) < ALL_RULES.index(NORMALIZATION)


def test_zeros_become_what_pytorch_makes_of_them() -> None:
    """NaN where there is no bound, zero where there is one; NaN stays in its token."""
    x, w = normal(4, CHANNELS), normal(CHANNELS, seed=1)
    x[1], x[2, 3] = 0, torch.nan
    for quantize in (act_quant, per_group):
        module, _ = substituted(imported(lambda x, w, q=quantize: q(llama(x, w)), x, w), RULES)
        numbers, _ = evaluated(module, x, w)
        wanted, _ = quantize(llama(x, w))
        assert torch.equal(numbers.float().isnan(), wanted.float().isnan())
        assert numbers[2].float().isnan().all() and numbers[1].float().isnan().all() == (quantize is act_quant)
