"""Functions of numbers, in float64, as operators that have converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten


def _wide(x: Tensor) -> Tensor:
    """``x`` as float64, in which series are computed."""
    return x.to(torch.float64)


def _result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a function like ``sin`` of ``x``."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _angle(self: Tensor) -> Any:
    if self.is_complex():
        return NotImplemented
    x = self.to(_result_dtype(self))
    return torch.where(x.isnan(), x, torch.where(x < 0, x.new_full((), math.pi), 0))


def _frac(self: Tensor) -> Tensor:
    """0 of -0, as PyTorch's kernel gives; the decomposition of PyTorch 2.11 gives -0."""
    return self - torch.trunc(self)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """By Horner's rule, the highest power first."""
    result = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


_DIGAMMA = (
    *(8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3, -4.16666666666666666667e-3),
    *(3.96825396825396825397e-3, -8.33333333333333333333e-3, 8.33333333333333333333e-2),
)
"""Of the asymptotic series in ``1 / x**2`` (Cephes, as PyTorch has it)."""


def _digamma_float64(x: Tensor) -> Tensor:
    reflected = x < 0
    y = torch.where(reflected, 1 - x, x)
    result = torch.zeros_like(y)
    for _ in range(10):
        small = y < 10
        result = torch.where(small, result - 1 / y, result)
        y = torch.where(small, y + 1, y)
    inverse = 1 / (y * y)
    series = torch.where(y < 1e17, inverse * _polynomial(inverse, _DIGAMMA), 0.0)
    result = result + y.log() - 0.5 / y - series
    fraction = x - x.trunc()  # the tangent's argument keeps its digits
    result = torch.where(reflected, result - math.pi / torch.tan(math.pi * fraction), result)
    result = torch.where((x < 0) & (x == x.floor()), math.nan, result)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, math.inf), -x), result)


def _digamma(self: Tensor) -> Tensor:
    return _digamma_float64(_wide(self)).to(_result_dtype(self))


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


def _zeta_float64(s: int, q: Tensor) -> Tensor:
    """Hurwitz's zeta function of a whole ``s`` > 1, for ``q`` >= 0, by Euler and Maclaurin's formula."""
    total = torch.zeros_like(q)
    for step in range(10):
        total = total + _whole_power(1 / (q + step), s)
    w = q + 10
    inverse = 1 / w
    factor, coefficients = float(s), []
    for j, bernoulli in enumerate(_BERNOULLI, 1):
        coefficients.append(bernoulli / math.factorial(2 * j) * factor)
        factor *= (s + 2 * j - 1) * (s + 2 * j)
    series = _polynomial(inverse * inverse, coefficients[::-1]) * inverse
    return total + _whole_power(inverse, s) * (w / (s - 1) + 0.5 + series)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    """``x ** exponent`` of an exponent above 0, by products."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x
    assert result is not None
    return result


def _cotangent_derivative(n: int) -> list[int]:
    """The polynomial in ``c = cot(y)``, lowest power first, that is the n-th derivative of ``cot(y)``."""
    powers = [0, 1]
    for _ in range(n):
        derived = [k * powers[k] for k in range(1, len(powers))]
        powers = [-(a + b) for a, b in zip([*derived, 0, 0], [0, 0, *derived], strict=True)]
    return powers


def _trigamma_float64(x: Tensor) -> Tensor:
    """To the digits that PyTorch has: its series errs by 5e-10."""
    reflected = x < 0.5
    y = torch.where(reflected, 1 - x, x)
    total = torch.where(reflected, -((math.pi / torch.sin(math.pi * x)) ** 2), 0.0)
    for _ in range(6):
        total = total + 1 / (y * y)
        y = y + 1
    inverse = 1 / (y * y)
    total = total + (1 + 1 / (2 * y) + inverse * (1 / 6 - inverse * (1 / 30 - inverse / 42))) / y
    return torch.where(reflected, -total, total)


def _polygamma(n: int, self: Tensor) -> Any:
    dtype = _result_dtype(self)
    if n == 0:
        return _digamma(self)
    if n < 0 or n > 20:
        return NotImplemented
    x = _wide(self)
    if n == 1:
        return _trigamma_float64(x).to(dtype)
    reflected = x < 0
    y = torch.where(reflected, 1 - x, x)
    result = (-1) ** (n + 1) * math.factorial(n) * _zeta_float64(n + 1, y)
    fraction = math.pi * (x - x.floor())
    cotangent = 1 / torch.tan(fraction)
    derivative = _polynomial(cotangent, [float(c) for c in reversed(_cotangent_derivative(n))]) * math.pi ** (n + 1)
    result = torch.where(reflected, (-1) ** n * result - derivative, result)
    # PyTorch has the limit from one side at the poles: infinity of zeta.
    pole = (x <= 0) & (x == x.floor())
    return torch.where(pole, (-1) ** (n + 1) * math.inf, result).to(dtype)  # of infinity NaN, as PyTorch has it


def _erfinv_float64(y: Tensor) -> Tensor:
    z = y * y
    inner = y * _polynomial(z, (-0.140543331, 0.914624893, -1.645349621, 0.886226899))
    inner = inner / _polynomial(z, (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0))
    z = torch.sqrt(-torch.log((1 - y.abs()) / 2))
    outer = _polynomial(z, (1.641345311, 3.429567803, -1.624906493, -1.970840454))
    outer = torch.copysign(outer / _polynomial(z, (1.637067800, 3.543889200, 1.0)), y)
    x = torch.where(y.abs() <= 0.7, inner, outer)
    for _ in range(2):  # Newton's steps
        x = x - (torch.erf(x) - y) / (2 / math.sqrt(math.pi) * torch.exp(-x * x))
    x = torch.where(y.abs() == 1, torch.copysign(torch.full_like(y, math.inf), y), x)
    return torch.where(y.abs() > 1, math.nan, x)


def _erfinv(self: Tensor) -> Tensor:
    return _erfinv_float64(_wide(self)).to(_result_dtype(self))


def _spherical_bessel_j0(x: Tensor) -> Tensor:
    dtype = _result_dtype(x)
    wide = _wide(x)
    square = wide * wide
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]
    series = _polynomial(square, terms[::-1])
    result = torch.where(wide.abs() < 0.5, series, wide.sin() / wide)
    return torch.where(wide.isinf(), 0.0, result).to(dtype)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    _aten.angle.default: _angle,
    _aten.digamma.default: _digamma,
    _aten.frac.default: _frac,
    _aten.polygamma.default: _polygamma,
    _aten.erfinv.default: _erfinv,
    _aten.special_spherical_bessel_j0.default: _spherical_bessel_j0,
}
