"""Indices of equal elements, of which PyTorch promises no order: of ``topk``, and of sorting that is not stable."""

from __future__ import annotations

import torch

OPERATORS = frozenset({"topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode"})


def choose_equals(source: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether both indices choose the same elements of ``source`` along one of its axes, and none twice."""
    if source.ndim == 0 or found.dtype != torch.int64:
        return False
    axes = [axis for axis in range(source.ndim) if _fits(source, expected, axis)]
    return any(_same_along(source, _whole(source, found, a), _whole(source, expected, a), a) for a in axes)


def _fits(source: torch.Tensor, indices: torch.Tensor, axis: int) -> bool:
    shape = list(source.shape)
    rest = shape[:axis] + shape[axis + 1 :]
    shape = list(indices.shape)
    return shape == rest or (len(shape) == source.ndim and shape[:axis] + shape[axis + 1 :] == rest)


def _whole(source: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    return indices if indices.ndim == source.ndim else indices.unsqueeze(axis)


def _same_along(source: torch.Tensor, found: torch.Tensor, expected: torch.Tensor, axis: int) -> bool:
    size = source.shape[axis]
    if found.numel() and not (int(found.min()) >= 0 and int(found.max()) < size):
        return False
    left, right = source.gather(axis, found), source.gather(axis, expected)
    ordered = found.sort(axis).values
    repeated = bool((ordered.diff(dim=axis) == 0).any())
    return not repeated and bool(((left == right) | (left.isnan() & right.isnan())).all())
