"""New weights in executables that are called meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import torch

from tkc.kernels.target import Target
from tkc.runtime.local_gpu import runs_here
from tkc.runtime.memory import DeviceWeights, Memory
from tkc.runtime.tensors import identity
from tkc.runtime.weights import EntryWeights, IncompatibleKeys, exchange


class WeightsInUse(list[Any]):
    """Weights as generated code takes them.

    Kernels may read them after the call that launched these has returned. Once they are :attr:`exchanged`, who is the
    last to hold them waits for the GPU before they go.
    """

    exchanged: torch.device | None = None
    """The GPU that they were exchanged on."""

    def __del__(self) -> None:
        """Wait for the kernels that were launched."""
        if self.exchanged is None or torch.cuda._is_in_bad_fork() or torch.cuda.is_current_stream_capturing():
            return
        torch.cuda.synchronize(self.exchanged)


class Exchanging(Protocol):
    """What runs an executable, or an entry of a program."""

    target: Target

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def loading(self) -> AbstractContextManager[Any]:
        """Is held while code or weights are loaded."""

    def entry_weights(self) -> EntryWeights:
        """Where the model's own weights stand."""

    def exchange(self, parameters: Mapping[str, torch.Tensor], on_device: DeviceWeights) -> Callable[[], None]:
        """Do all that may fail before calls can have other ``parameters``; the result is what gives them these."""


def load_weights(
    entries: Mapping[str, Exchanging], memory: Memory, weights: Mapping[str, Any], *, strict: bool
) -> IncompatibleKeys:
    """:meth:`tkc.Executable.load_weights` of ``entries``, which share ``memory``: of all of them, or of none."""
    with ExitStack() as held:
        if memory.in_turn is not None:
            held.enter_context(memory.in_turn)
        for entry in entries.values():
            held.enter_context(entry.loading)
        old = {name: entry.entry_weights() for name, entry in entries.items()}
        found = exchange(old, weights, strict=strict)
        first = next(iter(entries.values()))
        device = first.device if first.target.is_cuda and not runs_here(first.target) else None
        new = found.parameters(old, device)
        kept = {identity(weight) for parameters in new.values() for weight in parameters.values()}
        gone = [weight for each in old.values() for weight in each.parameters.values() if identity(weight) not in kept]
        on_device = memory.weights.without(gone)
        exchanges = [entry.exchange(new[name], on_device) for name, entry in entries.items()]
        memory.weights = on_device
        for apply in exchanges:
            apply()
    return found.keys
