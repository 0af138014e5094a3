"""Weights and buffers among a graph's arguments, which are the same tensors in each call: bound once.

PyTorch's guards hold for their shapes, strides and dtypes when a graph is called. That they are the same tensors at the
same addresses is looked at in each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tkc.runtime.bound_inputs import BoundInputs
from tkc.runtime.executable import Executable

MOST_MODELS = 128
"""Sets of tensors that are bound at a time, of models or layers that one graph serves. The oldest one goes first."""

MOST_WASTED = 16
"""How many sets may go unused one after the other, such as tensors that are made for each call, until none is bound."""

_Key = tuple[int, ...]


@dataclass(eq=False)
class _Entry:
    addresses: list[int]
    bound: BoundInputs
    watched: list[weakref.ref[torch.Tensor]]
    used: bool = False


class StaticArguments:
    """Binds the static inputs of an executable, once for each set of tensors that comes a second time.

    An entry goes with the first of its tensors that nobody else holds.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._positions: tuple[int, ...] | None = None
        self._seen: dict[_Key, None] = {}
        self._entries: dict[_Key, _Entry] = {}
        self._wasted = 0

    def bound(self, tensors: Sequence[torch.Tensor]) -> BoundInputs | None:
        """The static ones of the inputs ``tensors``, if they are bound. Raises as a call does for what does not fit."""
        if self._positions is None:
            self._positions = self._fixed()
        if not self._positions or self._wasted > MOST_WASTED:
            return None
        static = [tensors[position] for position in self._positions]
        key = tuple(map(id, static))
        entry = self._entries.get(key)
        if entry is None:
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > 2 * MOST_MODELS:
                    self._seen.clear()
                return None
        elif entry.addresses == [tensor.data_ptr() for tensor in static]:
            if not entry.used:
                entry.used, self._wasted = True, 0
            return entry.bound
        else:
            self._drop(key, entry)
        return self._bind(key, static, tensors)

    def _fixed(self) -> tuple[int, ...]:
        """The positions of static inputs that have one shape, as weights have, where there are others beside them."""
        inputs = self._executable.signature.inputs
        fixed = [
            i for i in sorted(self._executable.static_inputs) if all(isinstance(dim, int) for dim in inputs[i].shape)
        ]
        return tuple(fixed) if len(fixed) < len(inputs) else ()

    def _bind(self, key: _Key, static: Sequence[torch.Tensor], tensors: Sequence[Any]) -> BoundInputs:
        assert self._positions is not None
        bound = self._executable.bind(tensors, self._positions)
        self._seen.pop(key, None)
        entry = _Entry([tensor.data_ptr() for tensor in static], bound, [])
        gone = _dropping(weakref.ref(self), key, weakref.ref(entry))
        entry.watched = [weakref.ref(tensor, gone) for tensor in static]
        self._entries[key] = entry
        if len(self._entries) > MOST_MODELS:
            self._drop(*next(iter(self._entries.copy().items())))
        return bound

    def _drop(self, key: _Key, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]
            self._wasted += not entry.used


def _dropping(
    arguments: weakref.ref[StaticArguments], key: _Key, entry: weakref.ref[_Entry]
) -> Callable[[weakref.ref[torch.Tensor]], None]:
    """What drops an entry when one of its tensors goes: from then on another tensor may have its identity."""

    def drop(_: weakref.ref[torch.Tensor]) -> None:
        mine, dropped = arguments(), entry()
        if mine is not None and dropped is not None:
            mine._drop(key, dropped)

    return drop
