"""Operators as others of PyTorch's that have converters, where PyTorch's own core decompositions have none.

A decomposition that returns ``NotImplemented`` leaves its operator whole: it is called in PyTorch, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._refs as refs
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim

Decomposition = Callable[..., Any]

_aten = torch.ops.aten

_OF_PYTORCH = (
    _aten.view_copy.default,
    _aten.view_copy.dtype,
    _aten.narrow_copy.default,
    _aten.permute_copy.default,
    _aten.unbind_copy.int,
    _aten.dist.default,
    _aten.addmv.default,
    _aten.triu_indices.default,
    _aten.tril_indices.default,
    _aten.max_pool2d_with_indices_backward.default,
)
"""Operators whose decompositions PyTorch has, but not among its core ones."""


def decompositions() -> dict[OpOverload, Decomposition]:
    """The decompositions of this module, and those of PyTorch's that are added to its core ones."""
    return {**{op: decomposition_table[op] for op in _OF_PYTORCH if op in decomposition_table}, **_OWN}


def _wide(x: Tensor) -> Tensor:
    """``x`` as float64, in which series are computed."""
    return x.to(torch.float64)


def _result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a function like ``sin`` of ``x``."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


# Reading and writing by indices


def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = self.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)


def _index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if self.dim() == 0:
        return _index_reduce(
            self.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        ).reshape(())
    dim = canonicalize_dim(self.dim(), dim)
    shape = [-1 if axis == dim else 1 for axis in range(self.dim())]
    places = index.reshape(shape).expand(source.shape)
    return self.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    self, mask = torch.broadcast_tensors(self, mask)
    flat = mask.reshape(-1)
    # Elements that the mask leaves out read any of the source's.
    places = (flat.to(torch.int64).cumsum(0) - 1) * flat
    return torch.where(mask, source.reshape(-1)[places].reshape(self.shape), self)


def _nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Any:
    if self.dim() == 0 or isinstance(size, torch.SymInt):
        return NotImplemented
    if any(isinstance(extent, int) and extent == 0 for extent in self.shape):
        return torch.full((size, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    flat = (self != 0).reshape(-1)
    count = flat.to(torch.int64).cumsum(0)
    places = torch.where(flat, count - 1, size).clamp(max=size)  # the last of one more takes what is left out
    numbers = torch.arange(self.numel(), device=self.device)
    found = torch.full((size + 1,), -1, dtype=torch.int64, device=self.device).scatter(0, places, numbers)[:size]
    extents = [torch.sym_max(extent, 1) for extent in self.shape]  # no division by 0 where there is nothing
    strides = [math.prod(extents[axis + 1 :]) for axis in range(self.dim())]
    there = found >= 0
    parts = [
        torch.where(there, found // stride % extent, fill_value)
        for stride, extent in zip(strides, extents, strict=True)
    ]
    return torch.stack(parts, 1)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By one sum (0), mean (1) or maximum (2) a bag; the results for the backward pass are left empty."""
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    starts = offsets[:bags]
    begun = torch.zeros(indices.shape[0] + 1, dtype=torch.int64, device=indices.device)
    begun = begun.index_add(0, starts, torch.ones_like(starts, dtype=torch.int64))
    bag = begun.cumsum(0)[:-1] - 1
    kept = torch.ones_like(indices, dtype=torch.bool) if padding_idx < 0 else indices != padding_idx
    rows = torch.nn.functional.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counts = torch.zeros(bags, dtype=torch.int64, device=bag.device).index_add(0, bag, kept.to(torch.int64))
    if mode == 2:
        rows = rows.masked_fill(~kept.unsqueeze(1), -math.inf)
        lowest = torch.full((bags, weight.shape[1]), -math.inf, dtype=weight.dtype, device=weight.device)
        found = lowest.scatter_reduce(0, bag.unsqueeze(1).expand(rows.shape), rows, "amax")
        output = torch.where((counts > 0).unsqueeze(1), found, 0)
    else:
        wide = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        rows = rows.to(wide).masked_fill(~kept.unsqueeze(1), 0)
        output = torch.zeros((bags, weight.shape[1]), dtype=wide, device=weight.device).index_add(0, bag, rows)
        if mode == 1:
            output = output / counts.clamp(min=1).unsqueeze(1)
        output = output.to(weight.dtype)
    return output, bag.to(indices.dtype), counts.to(indices.dtype), counts.to(indices.dtype)


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    if lengths is not None:
        ends = lengths.cumsum(-1)
        counts = lengths
    elif offsets is not None:
        ends, counts = offsets[..., 1:], offsets.diff(dim=-1)
    else:
        return NotImplemented
    number = torch.arange(data.shape[axis], device=data.device)
    segment = (number.unsqueeze(-1) >= ends.unsqueeze(-2)).sum(-1)
    shape = [*data.shape[:axis], ends.shape[-1] + 1, *data.shape[axis + 1 :]]  # the last takes what is in none
    rest = [1] * (data.dim() - axis - 1)
    places = segment.reshape(*segment.shape, *rest).expand(data.shape)
    identity = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[reduce]
    start = torch.full(shape, identity if initial is None else initial, dtype=data.dtype, device=data.device)
    name = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}[reduce]
    result = start.scatter_reduce(axis, places, data, name).narrow(axis, 0, ends.shape[-1])
    if reduce == "mean":
        counts = counts.reshape(*counts.shape, *rest).expand(result.shape)
        mean = result / counts.to(result.dtype)
        # A segment without elements has the mean that was given.
        result = mean if initial is None else torch.where(counts == 0, result, mean)
    return result


# Order


_MOST_COMPARED = 32
"""Elements up to which each value is compared with all; with more, and a known number, it is searched for by halves."""


def _searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | complex,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """How many elements are before each value; all of them where it is NaN."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    values = self if isinstance(self, Tensor) else torch.full((), self, device=sorted_sequence.device)
    right = right or side == "right"
    shape = values.shape
    if sorted_sequence.dim() <= 1:
        values = values.reshape(-1)
    elif not values.dim():
        return NotImplemented
    dtype = torch.promote_types(sorted_sequence.dtype, values.dtype)
    elements, values = sorted_sequence.to(dtype), values.to(dtype)
    count = elements.shape[-1]

    def is_before(element: Tensor, value: Tensor) -> Tensor:
        return ~(element > value) if right else ~(element >= value)

    if isinstance(count, int) and count > _MOST_COMPARED:
        first = torch.zeros_like(values, dtype=torch.int64)
        last = torch.full_like(first, count)
        for _ in range(count.bit_length()):
            middle = (first + last) // 2
            place = middle.clamp(max=count - 1)
            element = elements[place] if elements.dim() == 1 else elements.gather(-1, place)
            before, is_open = is_before(element, values), first < last
            first, last = (
                torch.where(is_open & before, middle + 1, first),
                torch.where(is_open & ~before, middle, last),
            )
        found = first
    else:
        elements, values = elements.unsqueeze(-2), values.unsqueeze(-1)
        counted = is_before(elements, values)
        if dtype.is_floating_point:
            counted = counted & ((elements == elements) | (values != values))  # NaN is sorted last
        found = counted.sum(-1)
    return found.reshape(shape).to(torch.int32 if out_int32 else torch.int64)


def _bucketize(self: Tensor | complex, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _at(values: Tensor, order: Tensor, place: Any, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The sorted value at one ``place`` along ``dim``, and where it came from."""
    found = values.narrow(dim, place, 1), order.narrow(dim, place, 1)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    dim = canonicalize_dim(self.dim(), dim)
    values, order = self.sort(dim=dim)
    return _at(values, order, k - 1, dim, keepdim)


def _median_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of two; the first NaN where there is one."""
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    dim = canonicalize_dim(self.dim(), dim)
    values, order = self.sort(dim=dim)
    value, index = _at(values, order, (self.shape[dim] - 1) // 2, dim, keepdim)
    if not self.is_floating_point():
        return value, index
    is_nan = self.isnan()
    any_nan = is_nan.any(dim, keepdim)
    first = is_nan.to(torch.int64).argmax(dim, keepdim)
    return torch.where(any_nan, math.nan, value), torch.where(any_nan, first, index)


def _nanmedian_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0 or not self.is_floating_point():
        return _median_dim(self, dim, keepdim)
    dim = canonicalize_dim(self.dim(), dim)
    values, order = self.sort(dim=dim)  # NaN last
    count = (~self.isnan()).sum(dim, keepdim=True)
    place = ((count - 1) // 2).clamp(min=0)
    found = values.gather(dim, place), order.gather(dim, place)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _median(self: Tensor) -> Tensor:
    return _median_dim(self.reshape(-1), 0)[0]


def _nanmedian(self: Tensor) -> Tensor:
    return _nanmedian_dim(self.reshape(-1), 0)[0]


def _shifts(size: Any) -> Iterator[int] | None:
    """The powers of two below ``size``; ``None`` where it is not known."""
    if not isinstance(size, int):
        return None
    return (1 << step for step in range(max(size - 1, 0).bit_length()))


def _shifted(x: Tensor, dim: int, shift: int, value: Any) -> Tensor:
    """``x`` moved by ``shift`` along ``dim``, with ``value`` before it."""
    shape = [shift if axis == dim else size for axis, size in enumerate(x.shape)]
    before = torch.full(shape, value, dtype=x.dtype, device=x.device)
    return torch.cat([before, x.narrow(dim, 0, x.shape[dim] - shift)], dim)


def _running(self: Tensor, dim: int, later_wins: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """The extreme of what is up to each element, by doubling, and the place of the last such."""
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    dim = canonicalize_dim(self.dim(), dim)
    shifts = _shifts(self.shape[dim])
    if shifts is None:
        return NotImplemented
    places = torch.arange(self.shape[dim], device=self.device)
    places = places.reshape([-1 if axis == dim else 1 for axis in range(self.dim())]).expand(self.shape)
    values = self
    for shift in shifts:
        earlier, before = _shifted(values, dim, shift, 0), _shifted(places, dim, shift, -1)
        wins = later_wins(values, earlier) | (before < 0)
        if self.is_floating_point():
            wins = (values.isnan() | (wins & ~earlier.isnan())) | (before < 0)
        values, places = torch.where(wins, values, earlier), torch.where(wins, places, before)
    return values, places


def _cummax(self: Tensor, dim: int) -> Any:
    return _running(self, dim, torch.ge)


def _cummin(self: Tensor, dim: int) -> Any:
    return _running(self, dim, torch.le)


def _logcumsumexp(self: Tensor, dim: int) -> Any:
    if self.dim() == 0:
        return self.clone()
    dim = canonicalize_dim(self.dim(), dim)
    shifts = _shifts(self.shape[dim])
    if shifts is None or self.is_complex():
        return NotImplemented
    values = self.to(torch.float32) if self.dtype in (torch.float16, torch.bfloat16) else self
    for shift in shifts:
        values = torch.logaddexp(values, _shifted(values, dim, shift, -math.inf))
    return values.to(self.dtype)


# Linear algebra


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    for axis in expand1:
        i1 = i1.unsqueeze(axis)
    for axis in expand2:
        i2 = i2.unsqueeze(axis)
    for axis in expand3:
        i3 = i3.unsqueeze(axis)
    product = i1 * i2 * i3
    return product.sum(list(sumdim), dtype=product.dtype)


def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    wide = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    product = torch.bmm(batch1.to(wide), batch2.to(wide)).sum(0, dtype=wide)
    if not self.is_floating_point() and not self.is_complex():
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    return (product if beta == 0 else self.to(wide) * beta + product).to(self.dtype)


def _distances(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Of each row of ``x`` to each of ``y``, in the p-norm."""
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == 1:
        return difference.sum(-1)
    if p == math.inf:
        return difference.amax(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    return difference.pow(p).sum(-1).pow(1 / p)


def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    if isinstance(x1.shape[-1], int) and x1.shape[-1] == 0:
        shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        return x1.new_zeros((*shape, x1.shape[-2], x2.shape[-2]))
    return _distances(x1, x2, p)


def _pdist_forward(self: Tensor, p: float = 2) -> Any:
    count = self.shape[0]
    if not isinstance(count, int):
        return NotImplemented
    if self.shape[1] == 0:
        return self.new_zeros(count * (count - 1) // 2)
    rows, columns = torch.triu_indices(count, count, 1, device=self.device)
    return _distances(self[rows].unsqueeze(1), self[columns].unsqueeze(1), p).reshape(-1)


# Functions of numbers


def _angle(self: Tensor) -> Any:
    if self.is_complex():
        return NotImplemented
    x = self.to(_result_dtype(self))
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


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


_OWN: dict[OpOverload, Decomposition] = {
    _aten.put.default: _put,
    _aten.index_reduce.default: _index_reduce,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.nonzero_static.default: _nonzero_static,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._embedding_bag.default: _embedding_bag,
    _aten.segment_reduce.default: _segment_reduce,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.searchsorted.Scalar: _searchsorted,
    _aten.bucketize.Tensor: _bucketize,
    _aten.bucketize.Scalar: _bucketize,
    _aten.kthvalue.default: _kthvalue,
    _aten.median.default: _median,
    _aten.median.dim: _median_dim,
    _aten.nanmedian.default: _nanmedian,
    _aten.nanmedian.dim: _nanmedian_dim,
    _aten.cummax.default: _cummax,
    _aten.cummin.default: _cummin,
    _aten.logcumsumexp.default: _logcumsumexp,
    _aten._trilinear.default: _trilinear,
    _aten.addbmm.default: _addbmm,
    _aten._cdist_forward.default: _cdist_forward,
    _aten._pdist_forward.default: _pdist_forward,
    _aten.angle.default: _angle,
    _aten.digamma.default: _digamma,
    _aten.polygamma.default: _polygamma,
    _aten.erfinv.default: _erfinv,
    _aten.special_spherical_bessel_j0.default: _spherical_bessel_j0,
    _aten.logaddexp2.default: refs.logaddexp2,
}
