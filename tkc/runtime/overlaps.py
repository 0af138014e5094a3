"""Inputs that a call updates, and that overlap others in memory."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from tkc.errors import InputError

Place = tuple[int, torch.Size, tuple[int, ...], int]
"""Where a tensor begins, its shape, its strides in elements, and the bytes of an element."""


class OverlapCheck:
    """Refuses inputs that share memory with one that the model updates: PyTorch sees the update in both.

    Compiled code reads each input as it was, and writes back what it makes of it.
    """

    def __init__(self, names: Sequence[str], updated: Sequence[str]) -> None:
        """``names`` are those of all inputs, in order, ``updated`` of those that the model updates."""
        self._names = names
        self._updated = [name in updated for name in names]
        self._accepted: list[Place] = []  # of the last call; caches are the same ones for many calls

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raises :class:`InputError` for inputs that overlap; ``tensors`` are the inputs as they were handed over."""
        places = [place_of(tensor) for tensor in tensors]
        if places != self._accepted:
            self.compare_all(dict(enumerate(places)))
            self._accepted = places

    def compare_all(self, places: Mapping[int, Place]) -> None:
        """Raises for inputs that overlap, which have ``places`` by their positions."""
        spans = sorted((place[0], _end(place), position) for position, place in places.items() if 0 not in place[1])
        open_ones: list[tuple[int, int]] = []
        for start, end, position in spans:
            open_ones = [(until, other) for until, other in open_ones if until > start]
            for _, other in open_ones:
                self.compare(position, places[position], other, places[other])
            open_ones.append((end, position))

    def compare(self, one: int, place: Place, other: int, other_place: Place) -> None:
        """Raises for the inputs at two positions if they overlap there, and the model updates one."""
        if (self._updated[one] or self._updated[other]) and _overlap(place, other_place):
            self._refuse(one, other)

    def _refuse(self, one: int, other: int) -> None:
        updated = self._names[one if self._updated[one] else other]
        first, second = (self._names[position] for position in sorted((one, other)))
        raise InputError(
            f"inputs '{first}' and '{second}' overlap in memory, and the model updates '{updated}'; pass a copy of one"
        )


class MovedOverlapCheck:
    """The same of calls in which few inputs are elsewhere than in the call before: these are compared with all."""

    def __init__(self, check: OverlapCheck, bound: Mapping[int, torch.Tensor]) -> None:
        """The inputs at the positions of ``bound`` are these tensors in each call. Raises where these overlap."""
        self._check = check
        self._places = {position: place_of(tensor) for position, tensor in bound.items() if tensor.numel()}
        check.compare_all(self._places)
        self._bound = sorted((place[0], _end(place), position) for position, place in self._places.items())
        self._starts = [start for start, _, _ in self._bound]
        self._reach = list(itertools.accumulate((end for _, end, _ in self._bound), max))
        self._moving: dict[int, tuple[int, int]] = {}

    def __call__(self, moved: Mapping[int, torch.Tensor]) -> None:
        """Raises :class:`InputError` for inputs that overlap. Those that are not ``moved`` are where they were."""
        for position in moved:  # before any is compared: two may have changed places
            self._moving.pop(position, None)
        for position, tensor in moved.items():
            if tensor.numel():
                place = place_of(tensor)
                start, end = place[0], _end(place)
                for other in self._meeting(start, end):
                    self._check.compare(position, place, other, self._places[other])
                self._places[position], self._moving[position] = place, (start, end)

    def _meeting(self, start: int, end: int) -> Iterator[int]:
        """The inputs that have something between ``start`` and ``end``."""
        for position, (first, last) in self._moving.items():
            if first < end and last > start:
                yield position
        index = bisect.bisect_left(self._starts, end)
        while index and self._reach[index - 1] > start:
            index -= 1
            if self._bound[index][1] > start:
                yield self._bound[index][2]


def place_of(tensor: torch.Tensor) -> Place:
    """Where ``tensor`` lies in memory."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size()


def _end(place: Place) -> int:
    start, shape, strides, width = place
    return start + width * (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)))


def _overlap(one: Place, other: Place) -> bool:
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
