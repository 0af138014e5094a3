"""Batch normalizations, and activations behind a residual, in the epilogue of the convolution kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tkc
from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tests.schedules.graphs import Applied
from tkc.kernels import Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.rules.convolution import CONVOLUTION
from tkc.passes.rules.matmul import MATMUL

HOPPER = Target.parse("cuda:sm_90a")
OUT = 16
Norm = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def _along(x: Tensor, vector: Tensor) -> Tensor:
    """``vector`` along the channels of ``x``."""
    return vector.reshape(1, -1, *[1] * (x.ndim - 2))


def _frozen(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    factor = _along(x, scale) * (_along(x, variance) + 1e-3).rsqrt()
    return x * factor + (_along(x, shift) - _along(x, mean) * factor)


def _divided(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return _along(x, shift) + _along(x, scale) * ((x - _along(x, mean)) / torch.sqrt(_along(x, variance) + 1e-3))


def _reciprocal(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x - _along(x, mean)) * (1 / torch.sqrt(1e-3 + _along(x, variance)) * _along(x, scale)) + _along(x, shift)


NORMS: dict[str, Norm] = {
    "affine": lambda x, mean, variance, scale, shift: F.batch_norm(x, mean, variance, scale, shift, eps=1e-3),
    "without a scale": lambda x, mean, variance, scale, shift: F.batch_norm(x, mean, variance, None, shift),
    "without both": lambda x, mean, variance, scale, shift: F.batch_norm(x, mean, variance),
    "frozen": _frozen,
    "divided": _divided,
    "times a reciprocal": _reciprocal,
    "statistics of float32": lambda x, *vectors: F.batch_norm(x.float(), *(v.float() for v in vectors)).to(x.dtype),
}
PRODUCTS: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "windows": (lambda x, w, b: F.conv2d(x, w, padding=1), (2, 32, 7, 6), (OUT, 32, 3, 3)),
    "pixels": (lambda x, w, b: F.conv2d(x, w), (2, 40, 7, 6), (OUT, 40, 1, 1)),
    "windows and a bias": (lambda x, w, b: F.conv2d(x, w, b, stride=2), (2, 32, 7, 6), (OUT, 32, 3, 3)),
    "a sequence": (lambda x, w, b: F.conv1d(x, w, padding=1), (2, 32, 21), (OUT, 32, 3)),
    "colors": (lambda x, w, b: F.conv2d(x, w, stride=2, padding=3), (2, 3, 20, 24), (OUT, 3, 7, 7)),
    "rows": (lambda x, w, b: F.linear(x, w, b), (6, 24), (OUT, 24)),
}
ENDINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda y, r: y,
    "relu": lambda y, r: F.relu(y),
    "silu and a residual": lambda y, r: r + F.silu(y),
    "a residual": lambda y, r: y + r,
    "a residual and relu": lambda y, r: F.relu(y + r),
    "a residual and gelu": lambda y, r: F.gelu(r + y),
}


def _tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def _vectors() -> list[Tensor]:
    mean, variance, scale, shift = _tensors(*[(OUT,)] * 4)
    return [mean, variance.abs() + 0.5, scale, shift]


def _whole(product: str, norm: Norm, ending: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The function of an image, a weight, a bias, a residual and four vectors, and these."""
    function, image, weight = PRODUCTS[product]
    x, w, b = _tensors(image, weight, (OUT,))
    w = w / w[0].numel() ** 0.5
    (residual,) = _tensors(tuple(function(x, w, b).shape))

    def whole(x: Tensor, w: Tensor, b: Tensor, residual: Tensor, *vectors: Tensor) -> Tensor:
        return ENDINGS[ending](norm(function(x, w, b), *vectors), residual)

    return whole, [x, w, b, residual, *_vectors()]


def _module(function: Callable[..., Tensor], examples: list[Tensor]) -> object:
    return Canonicalize()(ConvolutionProducts(target=HOPPER)(imported(function, *examples, symbolic=())))


def _check(product: str, norm: Norm, ending: str) -> None:
    whole, examples = _whole(product, norm, ending)
    module = _module(whole, examples)
    (found,) = checked_substitutions(module, *examples, rules=(CONVOLUTION, MATMUL), rtol=2**-6)
    assert found.rule == "convolution"
    assert found.parameters.batch_norm is not None
    assert found.parameters.residual == ("residual" in ending)


@pytest.mark.daily(1)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("product", ["windows", "rows"])
def test_a_normalization_is_the_kernels(product: str, norm: str) -> None:
    """In each form, of statistics and factors in one dtype or in several."""
    _check(product, NORMS[norm], "relu")


@pytest.mark.daily(1)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_follows_is_the_kernels(product: str, ending: str) -> None:
    """An activation before or behind a residual."""
    _check(product, NORMS["affine"], ending)


@pytest.mark.parametrize("product", ["windows", "pixels"])
def test_an_activation_behind_a_residual_needs_no_normalization(product: str) -> None:
    """As in networks whose normalizations were folded into the weights."""
    whole, examples = _whole(product, lambda x, *_: x, "a residual and relu")
    module = _module(whole, examples)
    (found,) = checked_substitutions(module, *examples, rules=(CONVOLUTION, MATMUL), rtol=2**-6)
    assert (found.rule, found.parameters.activation_is_last) == ("convolution", True)


OTHERS: dict[str, Norm] = {
    "by row": lambda x, mean, variance, scale, shift: (x - x[:, :1]) * torch.rsqrt(variance[:, None, None] + 1e-3),
    "its own statistics": lambda x, mean, variance, scale, shift: F.batch_norm(x, None, None, scale, shift, True),
    "times the deviation": lambda x, mean, variance, scale, shift: (
        (x - _along(x, mean)) * (torch.sqrt(_along(x, variance) + 1e-3) * _along(x, scale)) + _along(x, shift)
    ),
    "no deviation": lambda x, mean, variance, scale, shift: (x - _along(x, mean)) * _along(x, scale),
    "another mean": lambda x, mean, variance, scale, shift: (
        x * (_along(x, scale) * (_along(x, variance) + 1e-3).rsqrt())
        + (_along(x, shift) - _along(x, mean) * _along(x, scale))
    ),
    "read elsewhere": lambda x, mean, variance, scale, shift: F.batch_norm(x, mean, variance, scale, shift) * x,
}


@pytest.mark.parametrize("norm", OTHERS)
def test_what_is_no_normalization_stays(norm: str) -> None:
    """With the numbers that it had."""
    whole, examples = _whole("windows", OTHERS[norm], "nothing")
    module = _module(whole, examples)
    found = checked_substitutions(module, *examples, rules=(CONVOLUTION, MATMUL), rtol=2**-5)
    assert all(each.parameters.batch_norm is None for each in found if each.rule == "convolution")


def test_other_gpus_have_none() -> None:
    """There the product is a matmul, and the normalization generated code."""
    whole, examples = _whole("pixels", NORMS["affine"], "relu")
    _, report = substituted(_module(whole, examples), (CONVOLUTION, MATMUL), Target.parse("cuda:sm_80"))
    assert [found.rule for found in report.substitutions] == ["matmul"]


@pytest.mark.gpu
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_on_a_gpu(product: str, ending: str) -> None:
    """With NaN and infinities in the image."""
    whole, examples = _whole(product, NORMS["affine"], ending)
    examples[0].flatten()[::997] = torch.inf
    examples[0].flatten()[5::997] = torch.nan
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's GELU of infinity is NaN on some CPUs
        expected = whole(*(tensor.float() for tensor in examples))
    given = [tensor.cuda() for tensor in examples]
    executable = tkc.compile(Applied(whole), tuple(given), target="cuda", database=False)
    assert "convolution" in [use.kernel for use in executable.report.uses]
    found = executable(*given).cpu().float()
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-5, equal_nan=True)
