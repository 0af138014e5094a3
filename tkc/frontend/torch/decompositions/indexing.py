"""Reading and writing by indices, bags and segments, as operators that have converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim

_aten = torch.ops.aten


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
    flat, values = mask.reshape(-1), source.reshape(-1)
    count = flat.to(torch.int64).cumsum(0)
    # Elements that the mask leaves out read the first value; where there may be none, it is one that is put there.
    if isinstance(values.shape[0], int) and values.shape[0] > 0:
        places = (count - 1) * flat
    else:
        values, places = torch.cat([values.new_zeros(1), values]), count * flat
    return torch.where(mask, values[places].reshape(self.shape), self)


def _nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Any:
    if isinstance(size, torch.SymInt):
        return NotImplemented
    if self.dim() == 0:
        return torch.zeros((size, 0), dtype=torch.int64, device=self.device)
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


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Each place as often as is said of it, if how many there are altogether is said, too."""
    if output_size is None:
        return NotImplemented
    ends = repeats.to(torch.int64).cumsum(0)
    torch.ops.aten._assert_async.msg(
        (repeats >= 0).all() & (repeats.sum() == output_size), "repeats are not negative, and add up to output_size"
    )
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


def _embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The rows that ``indices`` name, if their norm is larger, scaled to it."""
    is_named = torch.zeros(self.shape[0], dtype=torch.bool, device=self.device)
    is_named = is_named.index_put([indices.reshape(-1)], torch.ones((), dtype=torch.bool, device=self.device))
    norm = torch.linalg.vector_norm(self, norm_type, dim=1)
    wide = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    scale = torch.where(is_named & (norm > max_norm), max_norm / (norm.to(wide) + 1e-7), 1.0)
    return (self.to(wide) * scale.unsqueeze(1)).to(self.dtype)


def _max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """The sum, at each position of the image, of the gradients of the windows whose largest element it was."""
    empty = torch.zeros_like(self).flatten(-2)
    return empty.scatter_add(-1, indices.flatten(-2), grad_output.flatten(-2)).reshape(self.shape)


def _unfold_backward(grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """The windows ``grad_in`` added up where they overlap, as those of an image of one row.

    PyTorch (2.13) has an operator for each place in a window: in ``istft``, as many as the transform has frequencies.
    """
    if not input_sizes:
        return grad_in.reshape(())
    if any(isinstance(extent, int) and extent == 0 for extent in grad_in.shape):
        return grad_in.new_zeros(input_sizes)
    dim = canonicalize_dim(len(input_sizes), dim)
    windows = grad_in.movedim(dim, -1)
    *others, _, count = windows.shape
    covered = (count - 1) * step + size
    columns = windows.reshape(math.prod(others), size, count)
    row = _aten.col2im(columns, [1, covered], [1, size], [1, 1], [0, 0], [1, step]).reshape(*others, covered)
    whole = torch.nn.functional.pad(row, (0, input_sizes[dim] - covered))
    return whole.movedim(-1, dim).expand(input_sizes).contiguous()  # gradients of one for all are not repeated before


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
    kept = indices != padding_idx if padding_idx >= 0 else None
    rows = torch.nn.functional.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counted = torch.ones_like(bag) if kept is None else kept.to(torch.int64)
    counts = torch.zeros(bags, dtype=torch.int64, device=bag.device).index_add(0, bag, counted)
    if mode == 2:
        rows = rows if kept is None else rows.masked_fill(~kept.unsqueeze(1), -math.inf)
        lowest = torch.full((bags, weight.shape[1]), -math.inf, dtype=weight.dtype, device=weight.device)
        found = lowest.scatter_reduce(0, bag.unsqueeze(1).expand(rows.shape), rows, "amax")
        output = torch.where((counts > 0).unsqueeze(1), found, 0)
    else:
        wide = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        rows = rows.to(wide) if kept is None else rows.to(wide).masked_fill(~kept.unsqueeze(1), 0)
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


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    _aten.put.default: _put,
    _aten.index_reduce.default: _index_reduce,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.nonzero_static.default: _nonzero_static,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten._embedding_bag.default: _embedding_bag,
    _aten.embedding_renorm.default: _embedding_renorm,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
    _aten.segment_reduce.default: _segment_reduce,
    _aten.unfold_backward.default: _unfold_backward,
}
