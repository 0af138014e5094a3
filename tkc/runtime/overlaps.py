"""Inputs that a call updates, and that overlap others in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tkc.errors import InputError

_Place = tuple[int, torch.Size, tuple[int, ...], int]


class OverlapCheck:
    """Refuses inputs that share memory with one that the model updates: PyTorch sees the update in both.

    Compiled code reads each input as it was, and writes back what it makes of it.
    """

    def __init__(self, names: Sequence[str], updated: Sequence[str]) -> None:
        """``names`` are those of all inputs, in order, ``updated`` of those that the model updates."""
        self._names = names
        self._updated = [name in updated for name in names]
        self._accepted: list[_Place] = []  # of the last call; caches are the same ones for many calls

    def __call__(self, tensors: Sequence[torch.Tensor], moving: Sequence[int] | None = None) -> None:
        """Raises :class:`InputError` for inputs that overlap; ``tensors`` are the inputs as they were handed over.

        Only those at ``moving`` may be elsewhere than in the last call, where that is given.
        """
        looked_at = [_place(tensor) for tensor in (tensors if moving is None else map(tensors.__getitem__, moving))]
        if looked_at == self._accepted:
            return
        places = looked_at if moving is None else [_place(tensor) for tensor in tensors]
        spans = sorted((place[0], _end(place), position) for position, place in enumerate(places) if 0 not in place[1])
        open_ones: list[tuple[int, int]] = []
        for start, end, position in spans:
            open_ones = [(until, other) for until, other in open_ones if until > start]
            for _, other in open_ones:
                if (self._updated[position] or self._updated[other]) and _overlap(places[position], places[other]):
                    self._refuse(position, other)
            open_ones.append((end, position))
        self._accepted = looked_at

    def _refuse(self, one: int, other: int) -> None:
        updated = self._names[one if self._updated[one] else other]
        first, second = (self._names[position] for position in sorted((one, other)))
        raise InputError(
            f"inputs '{first}' and '{second}' overlap in memory, and the model updates '{updated}'; pass a copy of one"
        )


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size()


def _end(place: _Place) -> int:
    start, shape, strides, width = place
    return start + width * (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)))


def _overlap(one: _Place, other: _Place) -> bool:
    """Whether two tensors whose spans overlap share an element: the keys and values of one cache may be interleaved."""
    width, start = one[3], min(one[0], other[0])
    offsets = [place[0] - start for place in (one, other)]
    if other[3] != width or any(offset % width for offset in offsets):
        return True
    memory = torch.zeros((max(_end(one), _end(other)) - start) // width, dtype=torch.bool)
    of_one, of_other = (
        memory.as_strided(place[1], place[2], offset // width)
        for place, offset in zip((one, other), offsets, strict=True)
    )
    of_one.fill_(True)
    return bool(of_other.any())
