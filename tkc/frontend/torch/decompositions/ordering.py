"""Sorting, searching, extremes so far and order statistics, as operators that have converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim

_aten = torch.ops.aten


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


def _mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The least of the most frequent values, and where the last such is.

    NaN is the largest, and like no other. PyTorch sorts by ``<``, so that its result beside NaN depends on the order.
    """
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    dim = canonicalize_dim(self.dim(), dim)
    x = self.to(torch.uint8 if self.dtype == torch.bool else self.dtype).movedim(dim, -1)
    values, order = x.sort(dim=-1, stable=True)
    counts = _searchsorted(values, values, right=True) - _searchsorted(values, values)
    if x.is_floating_point():
        counts = torch.where(values.isnan(), 1, counts)
    first = counts.argmax(-1, keepdim=True)
    last = first + counts.gather(-1, first) - 1
    value = values.gather(-1, last).movedim(-1, dim).to(self.dtype)
    index = order.gather(-1, last).movedim(-1, dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


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


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.searchsorted.Scalar: _searchsorted,
    _aten.bucketize.Tensor: _bucketize,
    _aten.bucketize.Scalar: _bucketize,
    _aten.kthvalue.default: _kthvalue,
    _aten.mode.default: _mode,
    _aten.median.default: _median,
    _aten.median.dim: _median_dim,
    _aten.nanmedian.default: _nanmedian,
    _aten.nanmedian.dim: _nanmedian_dim,
    _aten.cummax.default: _cummax,
    _aten.cummin.default: _cummin,
    _aten.logcumsumexp.default: _logcumsumexp,
}
