"""Names a model's functions to profilers: each call is a range of torch.profiler, and of NVTX on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tkc.runtime.call_table import CallTable
from tkc.runtime.cuda_graphs import Run
from tkc.runtime.machines import Machines
from tkc.runtime.profiling.tracker import CallTracker

_LONGEST = 200
"""Characters of a range's name at the most."""

is_recording = torch._C._autograd._profiler_enabled
"""Whether ``torch.profiler`` records in this thread; takes some 30 ns."""


class Ranges:
    """Opens a range when a function of the model begins, and closes it when it ends. One call at a time.

    With ``nvtx``, Nsight's ranges too; ``torch.profiler`` sees those that are opened while it records.
    """

    def __init__(self, table: CallTable, *, nvtx: bool) -> None:
        self._tracker = CallTracker(table)
        self._nvtx = nvtx
        self._open: list[Any] = []

    def note(self, _: Any, symbol: str, before: bool, __: Any, *arguments: Any) -> int:
        """What the virtual machine tells before and after each of its calls; a string of TVM's may not outlive it."""
        if not before:
            self._leave()
            self._tracker.leave(str(symbol))
            return 0
        called = self._tracker.enter(str(symbol), arguments)
        opened = None
        if called is not None:
            name = called.name[:_LONGEST]
            opened = torch._C._profiler._RecordFunctionFast(name)
            opened.__enter__()
            if self._nvtx:
                torch.cuda.nvtx.range_push(name)
        self._open.append(opened)
        return 0

    def close(self) -> None:
        """Close what a function that failed left open, and expect a new call of the model."""
        while self._open:
            self._leave()
        self._tracker.restart()

    def _leave(self) -> None:
        opened = self._open.pop()
        if opened is not None:
            if self._nvtx:
                torch.cuda.nvtx.range_pop()
            opened.__exit__(None, None, None)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NamingMachine:
    """What runs one call at a time, and the ranges that it opens."""

    run: Run
    ranges: Ranges


def naming(machines: Machines[NamingMachine]) -> Run:
    """Runs calls by ``machines``, each with ranges of its own."""

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        machine = machines.take()
        try:
            return machine.run(inputs)
        finally:
            machine.ranges.close()
            machines.give_back(machine)

    return run
