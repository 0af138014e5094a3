"""The normalization rule: what it finds, what it keeps of sums, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.passes.rules.normalization import NORMALIZATION

RULES = (NORMALIZATION,)
CHANNELS = 24


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers off zero."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def transformers_rms(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama writes it: in float32, rounded before the weight."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gemma_rms(x: Tensor, weight: Tensor) -> Tensor:
    """A weight that is an offset to one, and rounding at the end."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + weight.float())).type_as(x)


def dividing_rms(x: Tensor, weight: Tensor) -> Tensor:
    """A division by the root, and the weight last."""
    return x / torch.sqrt(1e-6 + (x * x).mean(-1, keepdim=True)) * weight


def written_out_layer(x: Tensor, weight: Tensor) -> Tensor:
    """Layer normalization in simple operators."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-6) * weight


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "transformers": (transformers_rms, "rms"),
    "commuted": (lambda x, w: (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) * w, "rms"),
    "dividing": (dividing_rms, "rms"),
    "operator": (lambda x, w: F.rms_norm(x, (CHANNELS,), w, 1e-6), "rms"),
    "written out": (written_out_layer, "layer"),
    "layer": (lambda x, w: F.layer_norm(x, (CHANNELS,), w, None, 1e-6), "layer"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, CHANNELS), (5, 3, CHANNELS)], ids=["matrix", "sequence"])
def test_one_kernel_for_every_way_to_write_it(form: str, shape: tuple[int, ...]) -> None:
    """With a symbolic number of tokens; the weight becomes the kernel's."""
    function, kind = FORMS[form]
    inputs = normal(*shape), normal(CHANNELS, seed=1)
    (found,) = checked_substitutions(imported(function, *inputs), *inputs, rules=RULES)
    assert found.parameters == NormalizationParameters(CHANNELS, "float32", kind, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "layer"])  # that operator has a bias of its own
@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, 1, CHANNELS)], ids=["matrix", "sequence"])
def test_one_token_that_is_known_when_compiling(form: str, shape: tuple[int, ...]) -> None:
    """Its normalized values have the shape of a weight, and are none."""
    function, kind = FORMS[form]
    inputs = normal(*shape), normal(CHANNELS, seed=1), normal(CHANNELS, seed=2)
    module = imported(lambda x, w, b: b + function(x, w), *inputs, symbolic=())
    (found,) = checked_substitutions(module, *inputs, rules=RULES)
    assert found.parameters == NormalizationParameters(CHANNELS, "float32", kind, 1e-6, bias=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("form", "parameter_dtype"), [(transformers_rms, None), (gemma_rms, "float32")])
def test_sixteen_bits_are_read_and_written(
    form: Callable[[Tensor, Tensor], Tensor], parameter_dtype: str | None
) -> None:
    """The casts around it become the kernel's own; a weight computed in float32 stays that."""
    inputs = normal(5, CHANNELS, dtype=torch.bfloat16), normal(CHANNELS, seed=1, dtype=torch.bfloat16)
    (found,) = checked_substitutions(imported(form, *inputs), *inputs, rules=RULES, rtol=2**-7)
    assert found.parameters.dtype == "bfloat16" and found.parameters.parameter_dtype == parameter_dtype


def test_bias_and_no_weight() -> None:
    """Each tensor is the kernel's only if it is there."""
    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1), normal(CHANNELS, seed=2)
    module = imported(lambda x, w, b: (F.layer_norm(x, (CHANNELS,), w, b), F.layer_norm(x + 1, (CHANNELS,))), *inputs)
    found = checked_substitutions(module, *inputs, rules=RULES)
    assert {(s.parameters.weight, s.parameters.bias) for s in found} == {(True, True), (False, False)}


@pytest.mark.parametrize("kept", [True, False])
def test_takes_the_sum_before_it(kept: bool) -> None:
    """A sum that something else reads is an output too."""

    def block(x: Tensor, y: Tensor, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        total = x + y
        out = transformers_rms(total, weight)
        return (out, total * 2) if kept else out

    inputs = normal(5, 3, CHANNELS), normal(5, 3, CHANNELS, seed=1), normal(CHANNELS, seed=2)
    (found,) = checked_substitutions(imported(block, *inputs), *inputs, rules=RULES)
    assert found.parameters.residual and found.parameters.keeps_sum == kept


def test_a_chain_of_residual_blocks() -> None:
    """Every normalization takes its sum, also where the next block adds to it."""

    def chain(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        for _ in range(3):
            x = x + y
            y = transformers_rms(x, weight)
        return x + y

    inputs = normal(5, CHANNELS), normal(5, CHANNELS, seed=1), normal(CHANNELS, seed=2)
    (found,) = checked_substitutions(imported(chain, *inputs), *inputs, rules=RULES)
    assert found.count == 3 and found.parameters.keeps_sum


def test_a_broadcast_term_is_no_residual() -> None:
    """A sum with one row for all tokens stays an addition."""
    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (found,) = checked_substitutions(imported(lambda x, w: transformers_rms(x + w, w), *inputs), *inputs, rules=RULES)
    assert not found.parameters.residual


UNLIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over tokens": lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w,
    "a sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * w,
    "cubes": lambda x, w: x * torch.rsqrt(x.abs().pow(3).mean(-1, keepdim=True) + 1e-6) * w,
    "fourth powers": lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6) * w,
    "another tensor's statistics": lambda x, w: x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "an epsilon that varies": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + w.sum()) * w,
    "the root, not its inverse": lambda x, w: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "layer over two axes": lambda x, w: F.layer_norm(x.reshape(-1, 2, CHANNELS // 2), (2, CHANNELS // 2)),
}


@pytest.mark.parametrize("form", UNLIKE)
def test_what_only_looks_alike_is_left_alone(form: str) -> None:
    """No kernel, and the module stays as it was."""
    module = imported(UNLIKE[form], normal(5, CHANNELS), normal(CHANNELS, seed=1))
    assert substituted(module, RULES)[1].substitutions == ()


def test_rows_centered_by_another_mean_are_normalized_as_they_are() -> None:
    """Layer normalization takes off the mean of its own rows; of others, the root mean square alone is left."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        centered = x - (2 * x).mean(-1, keepdim=True)
        return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-6) * weight

    inputs = normal(5, CHANNELS), normal(CHANNELS, seed=1)
    (found,) = checked_substitutions(imported(function, *inputs), *inputs, rules=RULES)
    assert found.parameters.kind == "rms"


def test_a_weight_for_each_token_stays_outside() -> None:
    """It multiplies the kernel's result."""
    inputs = normal(5, CHANNELS), normal(5, 1, seed=1)
    (found,) = checked_substitutions(imported(transformers_rms, *inputs), *inputs, rules=RULES)
    assert not found.parameters.weight


def test_symbolic_channels_are_refused() -> None:
    """A kernel is built for a number of channels."""
    module = imported(lambda x: F.rms_norm(x.T, (x.shape[0],), None, 1e-6), normal(5, CHANNELS))
    _, report = substituted(module, RULES)
    assert report.substitutions == ()
    assert all("number of channels" in refused.reason for refused in report.refusals)
