"""What executables hold in memory: the state that calls update, and the weights on the device, each once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType

import torch

from tkc.errors import InputError
from tkc.runtime.input_checks import aligned
from tkc.runtime.signature import Signature
from tkc.runtime.streams import StreamOrder
from tkc.runtime.tensors import as_bytes, identity


class DeviceWeights:
    """Weights on the device, as generated code takes them; those that are the same memory are there once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._found: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """``weight`` itself if it is there already and fit for generated code, otherwise a copy."""
        with self._lock:
            key = identity(weight)
            if key not in self._found:
                # Beside its copy, the weight itself: other memory cannot have its address meanwhile.
                self._found[key] = weight, aligned(weight.detach().to(self._device))
            return self._found[key][1]

    def without(self, gone: Iterable[torch.Tensor]) -> DeviceWeights:
        """Those of this, but for what is there of the weights ``gone``."""
        made = DeviceWeights(self._device)
        dropped = set(map(identity, gone))
        with self._lock:
            made._found = {key: found for key, found in self._found.items() if key not in dropped}
        return made


class Memory:
    """The state and the weights of one executable, or of all entries of a program.

    ``initial`` are the first values of the state, on the CPU. With ``in_turn``, calls run one at a time.
    """

    def __init__(
        self,
        initial: Mapping[str, torch.Tensor],
        device: torch.device,
        *,
        in_turn: bool,
        weights: DeviceWeights | None = None,
    ) -> None:
        self.initial = initial
        self.weights = weights or DeviceWeights(device)
        self.in_turn = threading.RLock() if in_turn else None
        self.order = StreamOrder(device) if in_turn else None
        """The order of calls on streams, on a GPU; ``None`` where each thread's calls are in an order of their own."""
        self._device = device
        self._lock = threading.RLock()
        self._state: Mapping[str, torch.Tensor] | None = None
        self._zeros: frozenset[str] | None = None

    def state(self, check_device: Callable[[], None]) -> Mapping[str, torch.Tensor]:
        """The tensors that calls read and write; ``check_device`` raises where they cannot be had."""
        if self._state is None:
            with self._lock:
                if self._state is None:
                    check_device()
                    owned = {name: _owned(tensor, self._device) for name, tensor in self.initial.items()}
                    self._state = MappingProxyType(owned)
        return self._state

    @property
    def changed(self) -> Mapping[str, torch.Tensor] | None:
        """The state, if anything asked for it yet; otherwise it is ``initial``."""
        return self._state

    def reset(self) -> None:
        """Give the state, if there is one yet, its initial values."""
        if self._zeros is None:  # empty caches are large, and need not be copied
            self._zeros = frozenset(name for name, tensor in self.initial.items() if not as_bytes(tensor).any())
        for name, tensor in (self._state or {}).items():
            if name in self._zeros:
                tensor.zero_()
            else:
                tensor.copy_(self.initial[name])

    def copied(self) -> Memory:
        """One with the same weights, and a state of its own with the values of this one's."""
        made = Memory(self.initial, self._device, in_turn=self.in_turn is not None, weights=self.weights)
        if self.in_turn is not None and self._state is not None:
            with self.in_turn:
                owned = {name: _owned(tensor, self._device) for name, tensor in self._state.items()}
                made._state = MappingProxyType(owned)
        return made

    def is_busy(self) -> bool:
        """Whether another thread was inside when the process was forked, as found in the child."""
        locks = [lock for lock in (self._lock, self.in_turn) if lock is not None]
        return not all([lock.acquire(blocking=False) for lock in locks])

    def after_fork(self) -> None:
        """Make ready for calls in a forked child."""
        self._lock = threading.RLock()
        if self.in_turn is not None:
            self.in_turn = threading.RLock()


def set_values(state: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor], described: str) -> None:
    """Copy ``values`` into ``state``; :class:`tkc.InputError` for a name, dtype or shape it has not."""
    for name, value in values.items():
        own = state.get(name)
        if own is None or own.shape != value.shape or own.dtype != value.dtype:
            raise InputError(f"the state has no {name} of {value.dtype} {list(value.shape)}: {described}")
        own.copy_(value)


def _owned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of ``tensor`` on ``device``, in memory that generated code can take."""
    return aligned(torch.empty(tensor.shape, dtype=tensor.dtype, device=device)).copy_(tensor.detach())


def initial_state(signature: Signature, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values of the state among ``parameters``, on the CPU: the model's own memory may change."""
    return {spec.name: parameters[spec.name].detach().to("cpu", copy=True) for spec in signature.state}
