"""What generated code counted of indices out of range, zero divisors and assertions: kept until somebody is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from tkc.errors import IndexInputError, ValueInputError
from tkc.runtime.signature import Flag

_MESSAGES = {
    "index": "indices{} are out of range, so that the results are not what the model means: ",
    "divisor": "integers{} are divided by zero, which has no result; keep zeros out of the divisor: ",
    "assertion": "the model asserts something{} that does not hold: ",
}


class IndexFlags:
    """Collects what calls return as counts of bad indices and divisors, ``int32 [sources]`` each, and raises for them.

    On the CPU, and ``at_once``, a call raises for its own. A call on a GPU ends before its kernels do: what they count
    is added up on the device, call by call, and copied to the host behind each. So the first call that finds
    something there raises, or :meth:`check`, which waits for it. Nothing is lost between; raising clears it.
    """

    def __init__(self, sources: Sequence[Flag], device: torch.device, *, at_once: bool) -> None:
        """``sources`` say what indexes or divides, as messages name it."""
        self._sources = tuple(sources)
        self._device = device
        self._at_once = at_once or device.type == "cpu"
        self._streams: dict[int, _Counts] = {}
        self._adding = threading.Lock()

    def add(self, counts: torch.Tensor) -> None:
        """Take the ``counts`` of a call on the current stream; raise :class:`InputError` if that is to be at once."""
        if self._at_once:
            self._raise_for(counts.tolist(), "")
            return
        stream = torch.cuda.current_stream(self._device).cuda_stream
        found = self._streams.get(stream)
        if found is None:
            with self._adding:
                found = self._streams.setdefault(stream, _Counts(len(self._sources), self._device))
        found.add(counts)

    def raise_if_any(self) -> None:
        """Raise :class:`InputError` for what earlier calls are known to have counted; waits for nothing."""
        for counts in tuple(self._streams.values()):
            if counts.seen():
                self.check()

    def check(self) -> None:
        """Wait for all calls; raise :class:`InputError` if one of them since the last error had a bad index."""
        if not self._streams:
            return
        torch.cuda.synchronize(self._device)
        with self._adding:
            found = [counts.taken() for counts in self._streams.values()]
        self._raise_for([sum(column) for column in zip(*found, strict=True)], " of an earlier call")

    def _raise_for(self, counts: Sequence[int], which: str) -> None:
        found = [(flag, count) for flag, count in zip(self._sources, counts, strict=True) if count]
        messages = []
        for what, message in _MESSAGES.items():
            listed = "; ".join(
                flag.source if what == "assertion" else f"{count} by {flag.source}"
                for flag, count in found
                if flag.what == what
            )
            if listed:
                messages.append(message.format(which) + listed)
        if messages:
            kind = IndexInputError if any(flag.what == "index" for flag, _ in found) else ValueInputError
            raise kind("; ".join(messages))


class _Counts:
    """Counts of the calls on one stream: on the device, and on the host as of the last call that has ended."""

    def __init__(self, number: int, device: torch.device) -> None:
        self._total = torch.zeros(number, dtype=torch.int32, device=device)
        self._copy = torch.zeros(number, dtype=torch.int32, pin_memory=True)
        self._array = self._copy.numpy()

    def add(self, counts: torch.Tensor) -> None:
        self._total.add_(counts)
        self._copy.copy_(self._total, non_blocking=True)

    def seen(self) -> bool:
        return bool(self._array.any())

    def taken(self) -> list[int]:
        """The counts, which begin anew; nothing may run on the stream."""
        counts: list[int] = self._total.tolist()
        self._total.zero_()
        self._copy.zero_()
        torch.cuda.synchronize(self._total.device)
        return counts
