"""SwiGLU is found however it is written, with and without FP8 quantization, and only where the kernel is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.passes.rules.quantized_swiglu import QUANTIZED_SWIGLU
from tkc.passes.rules.swiglu import SWIGLU

RULES = (QUANTIZED_SWIGLU, SWIGLU)
FP8 = torch.float8_e4m3fn

SEPARATE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu first": lambda gate, up: F.silu(gate) * up,
    "up first": lambda gate, up: up * F.silu(gate),
    "sigmoid written out": lambda gate, up: gate * torch.sigmoid(gate) * up,
    "sigmoid first": lambda gate, up: torch.sigmoid(gate) * gate * up,
    "sigmoid times up": lambda gate, up: gate * (up * torch.sigmoid(gate)),
    "gate times up": lambda gate, up: (gate * up) * torch.sigmoid(gate),
}

PACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "split": lambda x: x.split(24, -1)[1] * F.silu(x.split(24, -1)[0]),
    "slices": lambda x: F.silu(x[..., :24]) * x[..., 24:],
}


def uniform(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers from -3 to 3, the same each time."""
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(7)) * 6 - 3).to(dtype)


@pytest.mark.parametrize("function", SEPARATE.values(), ids=SEPARATE)
def test_separate_tensors(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Every grouping and order of the factors is one kernel call."""
    gate, up = uniform(5, 24), uniform(5, 24).flip(0)
    (call,) = checked_substitutions(imported(function, gate, up), gate, up, rules=RULES)
    assert (call.parameters, call.count) == (SwiGLUParameters(24, "float32"), 1)


@pytest.mark.parametrize("function", PACKED.values(), ids=PACKED)
def test_halves_of_one_tensor(function: Callable[[Tensor], Tensor]) -> None:
    """Halves are read in place, from a tensor of any rank."""
    x = uniform(3, 2, 48)
    (call,) = checked_substitutions(imported(function, x), x, rules=RULES)
    assert call.parameters == SwiGLUParameters(24, "float32", packed=True)


def test_the_gate_in_the_second_half_is_copied_out() -> None:
    """The kernel takes the gate first; the other order is passed as two tensors, not swapped silently."""
    x = uniform(3, 48)
    module = imported(lambda x: x[:, :24] * F.silu(x[:, 24:]), x)
    (call,) = checked_substitutions(module, x, rules=RULES)
    assert call.parameters == SwiGLUParameters(24, "float32", packed=False)


def test_halves_of_another_axis_are_two_tensors() -> None:
    """Splitting the tokens is no packed layout."""
    x = uniform(4, 2, 6)
    (call,) = checked_substitutions(imported(lambda x: F.silu(x[:, 0]) * x[:, 1], x), x, rules=RULES)
    assert call.parameters == SwiGLUParameters(6, "float32", packed=False)


def test_thirds_of_one_tensor_are_not_packed() -> None:
    """Two neighbours of three parts lie in rows that are longer than the kernel would read."""
    x = uniform(4, 18)
    (call,) = checked_substitutions(imported(lambda x: F.silu(x[:, :6]) * x[:, 6:12], x), x, rules=RULES)
    assert call.parameters == SwiGLUParameters(6, "float32", packed=False)


def test_casts_in_between() -> None:
    """Computed in float32 and rounded at the end, it is the kernel for 16-bit tensors."""

    def swiglu(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return (F.silu(gate.float()) * up.float()).to(x.dtype)

    x = uniform(4, 16, dtype=torch.float16)
    (call,) = checked_substitutions(imported(swiglu, x), x, rules=RULES, rtol=2e-3)
    assert call.parameters == SwiGLUParameters(8, "float16", packed=True)


def test_a_float32_result_is_not_rounded_to_the_inputs_dtype() -> None:
    """Without the cast at the end, the widened tensors are the operands."""
    gate, up = uniform(4, 8, dtype=torch.float16), uniform(4, 8, dtype=torch.float16).flip(0)
    module = imported(lambda gate, up: F.silu(gate.float()) * up.float(), gate, up)
    (call,) = checked_substitutions(module, gate, up, rules=RULES)
    assert call.parameters == SwiGLUParameters(8, "float32")


LOOKALIKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "another activation": lambda gate, up: F.gelu(gate) * up,
    "sigmoid of something else": lambda gate, up: gate * torch.sigmoid(up) * up.abs(),
    "silu plus up": lambda gate, up: F.silu(gate) + up,
    "silu times a number": lambda gate, up: F.silu(gate) * 2 + up,
}


@pytest.mark.parametrize("function", LOOKALIKES.values(), ids=LOOKALIKES)
def test_lookalikes(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """What only resembles SwiGLU is neither replaced nor reported."""
    gate, up = uniform(5, 24), uniform(5, 24).flip(0)
    assert refusal_reasons(imported(function, gate, up), RULES) == []


def test_a_broadcast_operand_is_refused() -> None:
    """The kernel has no operand that is repeated over the channels."""
    gate, up = uniform(5, 24), uniform(5, 1)
    (reason,) = refusal_reasons(imported(lambda gate, up: F.silu(gate) * up, gate, up), RULES)
    assert "gate has the shape" in reason


def test_symbolic_channels_are_refused() -> None:
    """A kernel is built for a number of channels."""
    gate = uniform(5, 4)
    module = imported(lambda x: F.silu(x.transpose(0, 1)) * x.transpose(0, 1).exp(), gate)
    (reason,) = refusal_reasons(module, RULES)
    assert "number of channels" in reason


def amax_scale(values: Tensor, axes: tuple[int, ...], minimum: float = 1e-4, limit: float = 448.0) -> Tensor:
    """The largest magnitude over ``axes``, at least ``minimum``, over ``limit``."""
    return values.abs().amax(axes, keepdim=True).clamp(min=minimum) / limit


def quantized(values: Tensor, scale: Tensor, limit: float = 448.0, dtype: torch.dtype = FP8) -> Tensor:
    """``values / scale`` inside ``limit``, as ``dtype``."""
    return (values / scale).clamp(-limit, limit).to(dtype)


def per_token(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale a token."""
    values = (F.silu(gate) * up).float()
    scale = amax_scale(values, (-1,))
    return quantized(values, scale), scale.squeeze(-1)


def per_token_by_reciprocal(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The product with 448 / amax, and amax / 448 as the scale."""
    values = (F.silu(gate) * up).float()
    amax = values.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    return (values * (448.0 / amax)).clamp(-448, 448).to(FP8), amax / 448.0


def per_token_bounding_the_scale(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The lower bound on the scale itself, and no clamp."""
    values = (F.silu(gate) * up).float()
    scale = (values.abs().amax(-1, keepdim=True) * (1 / 448.0)).clamp(min=1e-4 / 448.0)
    return (values / scale).to(FP8), scale


def per_group(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for 128 channels of a token."""
    values = (F.silu(gate) * up).float()
    groups = values.unflatten(-1, (-1, 128))
    scale = amax_scale(groups, (-1,))
    return quantized(groups, scale).flatten(-2), scale.squeeze(-1)


def per_block(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for 128 tokens by 128 channels."""
    values = (F.silu(gate) * up).float()
    blocks = values.view(-1, 128, 2, 128)
    scale = amax_scale(blocks, (1, 3))
    return quantized(blocks, scale).view_as(values), scale[:, 0, :, 0]


def per_channel(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale a channel."""
    values = (F.silu(gate) * up).float()
    scale = amax_scale(values, (0,))
    return quantized(values, scale), scale


def power_of_two(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Scales rounded up to powers of two."""
    values = (F.silu(gate) * up).float()
    scale = 2 ** torch.ceil(torch.log2(amax_scale(values, (-1,))))
    return (values * (1 / scale)).to(FP8), scale


def e5m2(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The format with five bits of exponent."""
    values = (F.silu(gate) * up).float()
    scale = amax_scale(values, (-1,), limit=57344.0)
    return quantized(values, scale, 57344.0, torch.float8_e5m2), scale


QUANTIZED = {
    per_token: {"scale": "token"},
    per_token_by_reciprocal: {"scale": "token"},
    per_token_bounding_the_scale: {"scale": "token"},
    per_group: {"scale": "group"},
    per_block: {"scale": "block"},
    per_channel: {"scale": "channel"},
    power_of_two: {"scale": "token", "power_of_two_scales": True},
    e5m2: {"scale": "token", "quantized_dtype": "float8_e5m2"},
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", QUANTIZED, ids=lambda f: f.__name__)
def test_quantized(function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Values and scales come from one kernel call, whatever shares a scale and however it is computed."""
    gate, up = uniform(128, 256), uniform(128, 256).flip(0)
    module = imported(function, gate, up, symbolic=() if function is per_block else None)
    (call,) = checked_substitutions(module, gate, up, rules=RULES, rtol=0.08)
    assert (call.rule, call.count) == ("quantized_swiglu", 1)
    expected = SwiGLUParameters(256, "float32", **QUANTIZED[function])
    assert call.parameters.minimum_amax == pytest.approx(1e-4)
    assert call.parameters == SwiGLUParameters(**{**vars(expected), "minimum_amax": call.parameters.minimum_amax})


def per_token_of_a_matrix(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale a token, whose other axes are flattened before."""
    values = (F.silu(gate) * up).float().view(-1, 256)
    scale = amax_scale(values, (-1,))
    return quantized(values, scale), scale


def per_group_of_a_matrix(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """One scale a row of 128, which are all rows of one matrix."""
    values = (F.silu(gate) * up).float()
    groups = values.view(-1, 128)
    scale = amax_scale(groups, (-1,))
    return quantized(groups, scale).view_as(values), scale


@pytest.mark.parametrize(("function", "scale"), [(per_token_of_a_matrix, "token"), (per_group_of_a_matrix, "group")])
def test_views_of_the_same_rows(function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], scale: str) -> None:
    """Tokens and groups are found in a view of any rank."""
    gate, up = uniform(6, 4, 256), uniform(6, 4, 256).flip(0)
    (call,) = checked_substitutions(imported(function, gate, up), gate, up, rules=RULES, rtol=0.08)
    assert (call.rule, call.parameters.scale) == ("quantized_swiglu", scale)


def test_groups_that_cross_tokens_are_refused() -> None:
    """Rows of 128 of tokens of 192."""
    gate, up = uniform(4, 192), uniform(4, 192).flip(0)
    module = imported(lambda gate, up: per_group_of_a_matrix(gate, up)[0], gate, up, symbolic=())
    _, report = substituted(module, RULES)
    assert [call.parameters for call in report.substitutions] == [SwiGLUParameters(192, "float32")]
    assert any("share scales along the axes [1]" in refused.reason for refused in report.refusals)


def unbounded(gate: Tensor, up: Tensor) -> Tensor:
    """Zeros would be divided by zero."""
    values = F.silu(gate) * up
    return (values / (values.abs().amax(-1, keepdim=True) / 448.0)).to(FP8)


def another_limit(gate: Tensor, up: Tensor) -> Tensor:
    """Not the largest number of the format."""
    values = F.silu(gate) * up
    return quantized(values, amax_scale(values, (-1,), limit=240.0))


def clamped_inside(gate: Tensor, up: Tensor) -> Tensor:
    """Clamped below the largest number of the format."""
    values = F.silu(gate) * up
    return quantized(values, amax_scale(values, (-1,)), limit=240.0)


def scales_of_the_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Scales of other values than are quantized."""
    return quantized(F.silu(gate) * up, amax_scale(gate, (-1,)))


def signed_maximum(gate: Tensor, up: Tensor) -> Tensor:
    """The largest value instead of the largest magnitude."""
    values = F.silu(gate) * up
    return quantized(values, values.amax(-1, keepdim=True).clamp(min=1e-4) / 448.0)


def one_scale(gate: Tensor, up: Tensor) -> Tensor:
    """One scale for the whole tensor."""
    values = F.silu(gate) * up
    return quantized(values, amax_scale(values, (0, 1)))


def groups_of_64(gate: Tensor, up: Tensor) -> Tensor:
    """One scale for 64 channels."""
    groups = (F.silu(gate) * up).unflatten(-1, (-1, 64))
    return quantized(groups, amax_scale(groups, (-1,))).flatten(-2)


REFUSED = {
    unbounded: "no lower bound",
    another_limit: "divided by 240",
    clamped_inside: "clamps to",
    scales_of_the_gate: "",
    signed_maximum: "not of magnitudes",
    one_scale: "share scales along the axes [0, 1]",
    groups_of_64: "share scales along the axes [2]",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_other_quantization_is_refused_and_leaves_plain_swiglu(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The kernel without quantization still serves, and the report says why not the other."""
    gate, up = uniform(4, 256), uniform(4, 256).flip(0)
    _, report = substituted(imported(function, gate, up), RULES)
    assert [call.parameters for call in report.substitutions] == [SwiGLUParameters(256, "float32")]
    assert any(REFUSED[function] in refused.reason for refused in report.refusals)
