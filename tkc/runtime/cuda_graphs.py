"""Records the kernels of a call as a CUDA graph, so that the next call of the same shapes launches them at once."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

MOST_GRAPHS = 32
"""Graphs that one thread keeps of one executable; the one that was used longest ago goes first."""

MOST_BYTES = 1 << 30
"""Device memory that all of an executable's graphs may hold, whichever threads they belong to. A call that needs more
by itself is never recorded: it takes long enough for its launches not to matter."""

MOST_ATTEMPTS = 3
"""How often a call is tried to be recorded. Another thread that synchronizes the device spoils a recording."""

_LAUNCH, _REPLAY, _COPY = 12.5, 15.0, 8.0
"""Microseconds of the host: to call one function, to launch a graph, and to have a tensor copied to or from one.
Measured on an H200's host with models of 1 to 17 functions (docs/notebook/2026-11-28.md)."""

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""Gives a model's outputs for its inputs, which are checked, on the device, and contiguous."""

Retaining = Callable[[Sequence[torch.Tensor]], tuple[list[torch.Tensor], int, Any]]
"""Gives besides the outputs the bytes that were allocated for them and on the way, and what holds these."""

_Key = tuple[tuple[torch.Size, ...], tuple[int, ...]]
"""The inputs' shapes, and the addresses of those that are read and written where they are."""


_RECORDING = threading.Lock()
"""One recording at a time in a process: each begins with a synchronization of the device, which spoils others."""


class GraphMemory:
    """What the graphs of one executable hold, over all threads. What a thread held counts no more when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: weakref.WeakSet[_Recorded] = weakref.WeakSet()

    def add(self, recorded: _Recorded) -> None:
        """Count ``recorded`` for as long as it is there."""
        with self._lock:
            self._graphs.add(recorded)

    @property
    def bytes(self) -> int:
        """Of all graphs together."""
        with self._lock:
            return sum(recorded.bytes for recorded in self._graphs)


@dataclass(frozen=True)
class Launches:
    """How many ``functions`` a call launches one by one, on a GPU of that ``bandwidth`` in bytes per second."""

    functions: int
    bandwidth: float


class CudaGraphs(threading.local):
    """Runs a model, by a recorded graph where it was called with these shapes before.

    The first call of any shapes only runs; the second records them, unless copies would take longer than the launches
    that a graph saves: few functions, or large inputs and outputs. A graph reads its inputs from copies, computes in
    memory of its own, and its outputs are copied, so that a caller may keep them. Inputs that the model updates are
    read and written where they are, and so are those said to be the same memory in each call, such as weights: a graph
    is for these tensors alone. Each thread has its own graphs, because generated code takes scratch memory that belongs
    to the thread.
    """

    def __init__(
        self,
        run: Run,
        retaining: Retaining,
        in_place: Collection[int] = (),
        memory: GraphMemory | None = None,
        launches: Launches | None = None,
    ) -> None:
        """``run`` and ``retaining`` compute the same; ``in_place`` are the positions of inputs that they change, and of
        those that a caller keeps where they are.

        ``memory`` is shared by all threads; each has its own if it is left out. ``launches`` are what a graph saves, if
        that is known.
        """
        self._launches = launches
        self._run = run
        self._retaining = retaining
        self._in_place = frozenset(in_place)
        self._memory = memory or GraphMemory()
        self._recorded: OrderedDict[_Key, _Recorded | None] = OrderedDict()
        self._failed: Counter[_Key] = Counter()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What ``run`` gives for ``inputs``."""
        # Inputs tell generated code the stream: without, it would launch beside a recording. And a caller who is
        # recording gets the kernels into that graph.
        if not inputs or (inputs[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return self._run(inputs)
        key = tuple([tensor.shape for tensor in inputs]), tuple([inputs[i].data_ptr() for i in self._in_place])
        if key in self._recorded:
            self._recorded.move_to_end(key)
            recorded = self._recorded[key] or self._record(key, inputs)
            return self._run(inputs) if recorded is None or recorded.graph is None else recorded.replay(inputs)
        self._recorded[key] = None
        self._drop_old()
        outputs = self._run(inputs)
        if not self._is_worth_recording(inputs, outputs):
            self._recorded[key] = _Recorded()
        return outputs

    def _is_worth_recording(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether a graph of such a call is sooner done than its launches; one that updates inputs counts as such."""
        if self._launches is None or self._in_place:
            return True
        copied = [*inputs, *outputs]
        moved = 2 * sum(tensor.nbytes for tensor in copied)  # read and written
        copying = _COPY * len(copied) + 1e6 * moved / self._launches.bandwidth
        return _REPLAY + copying < _LAUNCH * self._launches.functions

    def _record(self, key: _Key, inputs: Sequence[torch.Tensor]) -> _Recorded | None:
        """The graph of a call, or one without a graph if there is to be none; ``None`` if it is to be tried again."""
        with _RECORDING:
            recorded = _record(self._retaining, inputs, self._in_place)
        if recorded is None:
            self._failed[key] += 1
            if self._failed[key] < MOST_ATTEMPTS:
                return None
            recorded = _Recorded()
        elsewhere = self._memory.bytes - self._bytes
        if recorded.bytes > MOST_BYTES - elsewhere:
            recorded = _Recorded()
        self._memory.add(recorded)
        self._recorded[key] = recorded
        self._drop_old()
        return recorded

    @property
    def _bytes(self) -> int:
        return sum(recorded.bytes for recorded in self._recorded.values() if recorded)

    def _drop_old(self) -> None:
        while len(self._recorded) > MOST_GRAPHS or (self._bytes and self._memory.bytes > MOST_BYTES):
            # Nothing else may hold what is dropped: its memory counts until it is gone.
            self._failed.pop(self._recorded.popitem(last=False)[0], None)


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A graph with the tensors it reads and writes (``None`` for inputs that it reads where they are, whose address its
    key has); without one where a call of these shapes is not to be recorded."""

    graph: torch.cuda.CUDAGraph | None = None
    inputs: Sequence[torch.Tensor | None] = ()
    outputs: Sequence[torch.Tensor] = ()
    bytes: int = 0
    memory: Any = None

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self.graph is not None
        for mine, given in zip(self.inputs, inputs, strict=True):
            if mine is not None and mine.data_ptr() != given.data_ptr():
                mine.copy_(given)
        self.graph.replay()
        return [output.clone() for output in self.outputs]


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, device: torch.device) -> Iterator[None]:
    """Record what is launched inside on ``device``, the current one.

    ``torch.cuda.graph`` has one stream for all devices, and leaves it the current one where a recording fails.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # the graph's memory is of its own
    with torch.cuda.stream(_capture_stream(device)):
        # Relaxed, because kernels may be loaded meanwhile, and other threads may allocate.
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            yield
        finally:
            graph.capture_end()


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _release_generators(device: torch.device) -> None:
    """Have PyTorch's random generator of ``device`` usable after a capture that CUDA has invalidated.

    PyTorch raises then before it tells the generator that the capture has ended, and random numbers raise from there
    on. The end of another capture tells it.
    """
    with suppress(RuntimeError), _capturing(torch.cuda.CUDAGraph(), device):
        torch.zeros(1, device=device)


def _record(retaining: Retaining, inputs: Sequence[torch.Tensor], in_place: Collection[int]) -> _Recorded | None:
    """The call as a graph; ``None`` where it could not be recorded."""
    own = [None if position in in_place else tensor.clone() for position, tensor in enumerate(inputs)]
    read = [tensor if mine is None else mine for mine, tensor in zip(own, inputs, strict=True)]
    graph = torch.cuda.CUDAGraph()
    try:
        with _capturing(graph, inputs[0].device):
            outputs, allocated, memory = retaining(read)
    except RuntimeError as error:
        _release_generators(inputs[0].device)
        warnings.warn(f"this model's kernels are launched one by one: no CUDA graph of them ({error})", stacklevel=2)
        return None
    size = allocated + sum(tensor.nbytes for tensor in own if tensor is not None)
    return _Recorded(graph, own, outputs, size, memory) if size <= MOST_BYTES else _Recorded()
