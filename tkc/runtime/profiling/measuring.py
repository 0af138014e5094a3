"""Measures a profile: runs a model by a virtual machine of its own that tells each call, and times them."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tkc.errors import UsageError
from tkc.kernels.target import Target
from tkc.runtime.call_table import CallTable
from tkc.runtime.cuda_graphs import Run
from tkc.runtime.input_checks import described
from tkc.runtime.profiling import device_rates
from tkc.runtime.profiling.profile import Profile
from tkc.runtime.profiling.rows import HOST, Row
from tkc.runtime.profiling.tracker import Called, CallTracker
from tkc.runtime.profiling.work import MeasuredWork, measured_work
from tkc.runtime.signature import Signature, TensorSpec
from tkc.runtime.tensors import to_torch

_SLACK = 1.5
"""How much longer than the host has taken so far the GPU waits for it."""
_LONGEST_WAIT = 0.5
"""Seconds that it waits at the most."""
_WARM_UP = 2
"""Calls before those that are timed. The second one records a CUDA graph, if there is to be one."""


@dataclass(frozen=True)
class Subject:
    """What is profiled: an executable, loaded, by what it does with flattened inputs.

    ``check`` gives them as generated code takes them; ``call`` is a whole call whose kernels are launched one by one,
    ``graph`` one that may be a CUDA graph, if there are such. ``told`` gives what runs checked inputs by a machine that
    tells of its calls. ``updated`` are the positions of inputs that a call changes; with ``in_turn``, calls of which
    each finds what the one before changed run one at a time.
    """

    target: Target
    device: torch.device
    signature: Signature
    calls: CallTable
    state: Mapping[str, torch.Tensor]
    updated: Sequence[int]
    in_turn: AbstractContextManager[Any] | None
    check: Run
    call: Callable[[Sequence[Any]], object]
    graph: Callable[[Sequence[Any]], object] | None
    told: Callable[[Callable[..., int]], Run]


def profiled(subject: Subject, inputs: Sequence[Any], repeat: int) -> Profile:
    """What :meth:`Executable.profile` returns, for flattened inputs."""
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise UsageError(f"repeat={repeat!r} is no number of calls; give 1 or more")
    device = subject.device
    with _alone(subject), _on(device):
        calls = _Calls(subject, inputs)
        calls.seconds()  # what is wrong with the inputs or the device shows here
        recorder = _CudaRecorder(subject) if device.type == "cuda" else _Recorder(subject)
        whole, passes = [], []
        # In turns: how fast the device is, and who else uses it, is the same for both.
        for _ in range(_WARM_UP + repeat):
            whole.append(calls.seconds())
            calls.told(recorder)
            passes.append(recorder.passed())
        call_seconds = statistics.median(whole[_WARM_UP:])
        graph_seconds = calls.graph_seconds(repeat)
    passes = passes[_WARM_UP:]
    rates = _Rates(device)
    rows = _rows(passes, recorder.works, rates, call_seconds)
    rest = call_seconds - sum(row.seconds for row in rows)
    host = Row("not in any function", "", HOST, (), 0, max(rest, 0.0), max(rest, 0.0) / call_seconds)
    return Profile(
        target=str(subject.target),
        device=_device_name(device),
        inputs=calls.described,
        repeat=repeat,
        measured_by=recorder.measured_by,
        call_seconds=call_seconds,
        rows=(*rows, host),
        bandwidth=rates.bandwidth,
        flops=rates.told,
        graph_seconds=graph_seconds,
    )


@contextmanager
def _alone(subject: Subject) -> Iterator[None]:
    """Calls of a model that changes something wait; and what it changed is as it was, afterwards."""
    if subject.in_turn is None:
        yield
        return
    with subject.in_turn:
        before = {name: tensor.clone() for name, tensor in subject.state.items()}
        try:
            yield
        finally:
            for name, tensor in subject.state.items():
                tensor.copy_(before[name])


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
    else:
        with torch.cuda.device(device):
            yield


class _Calls:
    """Calls with the same inputs, which find the state and updated inputs as the first call did."""

    def __init__(self, subject: Subject, inputs: Sequence[Any]) -> None:
        self._subject = subject
        self._given = list(inputs)
        self._before = {position: to_torch(inputs[position], "").detach().clone() for position in subject.updated}
        self._state = {name: tensor.clone() for name, tensor in subject.state.items()}
        for position, value in self._before.items():
            self._given[position] = value.clone()
        self.described = tuple(
            f"{spec.name} ({described(TensorSpec(spec.name, tuple(to_torch(value, '').shape), spec.dtype))})"
            for spec, value in zip(subject.signature.inputs, inputs, strict=True)
        )

    def _restore(self) -> None:
        for position, value in self._before.items():
            self._given[position].copy_(value)
        for name, value in self._state.items():
            self._subject.state[name].copy_(value)

    def seconds(self) -> float:
        """The time of a whole call, whose kernels are launched one by one."""
        return self._timed(self._subject.call)

    def graph_seconds(self, repeat: int) -> float | None:
        """The median time of a call as a CUDA graph; ``None`` where there is none."""
        if (graph := self._subject.graph) is None:
            return None
        return statistics.median([self._timed(graph) for _ in range(_WARM_UP + repeat)][_WARM_UP:])

    def _timed(self, call: Callable[[Sequence[Any]], object]) -> float:
        self._restore()
        self._wait()
        start = time.perf_counter()
        call(self._given)
        self._wait()
        return time.perf_counter() - start

    def told(self, recorder: _Recorder) -> None:
        """A call of which ``recorder`` is told each function."""
        self._restore()
        self._wait()
        recorder.run(self._subject.check(self._given))
        self._wait()

    def _wait(self) -> None:
        if self._subject.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass
class _Pass:
    """The times of one call, by what was called, and how often it was."""

    seconds: defaultdict[Called, float] = field(default_factory=lambda: defaultdict(float))
    calls: defaultdict[Called, int] = field(default_factory=lambda: defaultdict(int))


class _Recorder:
    """Is told by the virtual machine before and after each call, and times those of functions by the wall clock."""

    measured_by = "the wall clock, one call after the other"

    def __init__(self, subject: Subject) -> None:
        self.works: dict[Called, _Work] = {}
        self._tracker = CallTracker(subject.calls)
        self._call = subject.told(self._note)
        self._pass = _Pass()
        self._open: list[tuple[Called | None, Any]] = []
        self._least = float("inf")  # the time of a call of the machine's own that does next to nothing

    def run(self, inputs: Sequence[torch.Tensor]) -> None:
        """Call the model with checked inputs."""
        self._tracker.restart()
        self._open.clear()
        self._pass = _Pass()
        self._call(inputs)
        for work in self.works.values():
            work.is_complete = True

    def passed(self) -> _Pass:
        """The times of the call that was made last."""
        if self._least < float("inf"):
            for called, calls in self._pass.calls.items():
                self._pass.seconds[called] = max(self._pass.seconds[called] - calls * self._least, 0.0)
        return self._pass

    def _note(self, _: Any, symbol: str, before: bool, __: Any, *arguments: Any) -> int:
        """What the virtual machine calls; a string of TVM's may not outlive the call."""
        if not before:
            end = self._mark(self._open[-1][0])
            called, start = self._open.pop()
            self._add(called, start, end)
            self._tracker.leave(str(symbol))
            return 0
        name = str(symbol)
        called = self._tracker.enter(name, arguments)
        if called is not None:
            self._note_work(called, name, arguments)
        self._open.append((called, self._mark(called)))
        return 0

    def _mark(self, _: Called | None) -> Any:
        return time.perf_counter()

    def _add(self, called: Called | None, start: Any, end: Any) -> None:
        if called is None:
            self._least = min(self._least, end - start)
        else:
            self._pass.seconds[called] += end - start
            self._pass.calls[called] += 1

    def _note_work(self, called: Called, symbol: str, arguments: Sequence[Any]) -> None:
        noted = self.works.setdefault(called, _Work())
        if not noted.is_complete:
            known = self._tracker.work_of(called)
            noted.each.append(None if known is None else measured_work(known, symbol, arguments))


@dataclass
class _Work:
    """The work of all calls of a function with the same nodes, in one call of the model."""

    each: list[MeasuredWork | None] = field(default_factory=list)
    is_complete: bool = False

    @property
    def total(self) -> MeasuredWork | None:
        """The sum; ``None`` where that of any is not known."""
        known = [work for work in self.each if work is not None]
        if not known or len(known) < len(self.each):
            return None
        return MeasuredWork(sum(w.flops for w in known), sum(w.bytes for w in known), known[0].dtype)


class _CudaRecorder(_Recorder):
    """Times functions by events on the stream.

    So that no event waits for the host, the GPU first waits until the host is ahead: before so many functions, it spins
    for as long as the host takes to launch them.
    """

    measured_by = "events on the stream, kernels launched one by one"
    _AHEAD = 200
    """Functions that are launched while the GPU waits: streams hold some 1,000 commands, and each has three or more."""
    _EMPTY = 8
    """Pairs of events with nothing between them, which tell what is measured of nothing."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._events: list[tuple[Called | None, torch.cuda.Event, torch.cuda.Event]] = []
        self._empty = self._launched = self._all = self._ahead = 0
        self._host_seconds = 0.0
        self._cycles = _cycles_per_second(subject.device)

    def run(self, inputs: Sequence[torch.Tensor]) -> None:
        """Call the model with checked inputs."""
        self._all, self._launched, self._ahead, self._empty = self._launched, 0, 0, 0
        self._events = []
        begun = time.perf_counter()
        super().run(inputs)
        # The least of all calls: the first one also loads what it launches, and some wait for the GPU.
        taken = (time.perf_counter() - begun) / max(self._launched, 1)
        self._host_seconds = min(self._host_seconds or taken, taken)

    def _mark(self, called: Called | None) -> torch.cuda.Event | None:
        if called is None and self._empty >= self._EMPTY:
            return None  # of the machine's own calls there are many, and streams hold so many commands
        in_function = any(each is not None for each, _ in self._open)
        if self._launched >= self._ahead and not in_function:
            self._ahead = self._launched + self._AHEAD
            seconds = _SLACK * self._host_seconds * min(self._AHEAD, self._all)
            if seconds:
                torch.cuda._sleep(int(min(seconds, _LONGEST_WAIT) * self._cycles))
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add(self, called: Called | None, start: Any, end: Any) -> None:
        self._launched += called is not None
        if called is None and start is not None and end is not None:
            self._empty += 1
        if start is not None and end is not None:
            self._events.append((called, start, end))

    def passed(self) -> _Pass:
        """The times of the call that was made last, of which the GPU has done everything."""
        empty = []
        for called, start, end in self._events:
            seconds = start.elapsed_time(end) * 1e-3
            if called is None:
                empty.append(seconds)
            else:
                self._pass.seconds[called] += seconds
                self._pass.calls[called] += 1
        if empty:
            self._least = min(self._least, *empty)
        return super().passed()


def _cycles_per_second(device: torch.device) -> float:
    """How many of ``torch.cuda._sleep``'s cycles the GPU spins in a second."""
    cycles = 1_000_000
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    seconds = float(begin.elapsed_time(end)) * 1e-3
    return cycles / max(seconds, 1e-9)


class _Rates:
    """The device's rates, measured for the dtypes that are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.bandwidth = device_rates.bandwidth(device)
        self.told: dict[str, float] = {}

    def least_seconds(self, work: MeasuredWork) -> float:
        """The time that ``work`` takes at these rates."""
        rate = self.told.setdefault(work.dtype, device_rates.flops(self._device, work.dtype))
        return max(work.flops / rate, work.bytes / self.bandwidth)


def _rows(passes: Sequence[_Pass], works: dict[Called, _Work], rates: _Rates, call_seconds: float) -> list[Row]:
    rows = []
    for called in dict.fromkeys(called for each in passes for called in each.calls):
        seconds = statistics.median([each.seconds.get(called, 0.0) for each in passes])
        calls = statistics.median_high([each.calls.get(called, 0) for each in passes])
        work = works[called].total
        reached = None if work is None or seconds <= 0 else rates.least_seconds(work) / seconds
        rows.append(
            Row(
                name=called.name,
                function=called.function,
                kind=called.kind,
                nodes=called.nodes,
                calls=calls,
                seconds=seconds,
                share=seconds / call_seconds,
                flops=None if work is None else work.flops,
                bytes=None if work is None else work.bytes,
                roofline=reached,
            )
        )
    return sorted(rows, key=lambda row: -row.seconds)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU ({torch.get_num_threads()} of {os.cpu_count()} threads)"
