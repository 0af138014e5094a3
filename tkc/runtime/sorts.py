"""Sorts by PyTorch's library, called by generated code.

Generated code calls :data:`~tkc.contracts.SORT` with a description in JSON, ``{"axis": ..., "descending": ...}``, and a
tensor; it gets the numbers in order along the axis, those that are equal as they were, and the ``int64`` place of each
along that axis before. :data:`~tkc.contracts.TOP` has ``{"axis": ..., "count": ..., "largest": ...}``, and gives so
many of them, the first ones; of equal numbers it may take any. NaN is above infinity.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import torch

from tkc.errors import OutOfMemoryError
from tkc.runtime.input_checks import aligned

_Ordered = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def sort(description: str, x: torch.Tensor) -> list[torch.Tensor]:
    """All numbers, and their places. Raises :class:`OutOfMemoryError`."""
    return _run(_sort(description), x)


def top(description: str, x: torch.Tensor) -> list[torch.Tensor]:
    """The largest or smallest numbers, and their places. Raises :class:`OutOfMemoryError`."""
    return _run(_top(description), x)


def _run(ordered: _Ordered, x: torch.Tensor) -> list[torch.Tensor]:
    try:
        return [aligned(each) for each in ordered(x)]
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for a sort: {error}") from error


@functools.cache
def _sort(description: str) -> _Ordered:
    call = json.loads(description)
    axis, descending = call["axis"], call["descending"]
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)


@functools.cache
def _top(description: str) -> _Ordered:
    call = json.loads(description)
    axis, count, largest = call["axis"], call["count"], call["largest"]
    return lambda x: torch.topk(x, count, axis, largest)
