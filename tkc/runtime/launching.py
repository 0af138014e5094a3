"""How checked inputs become outputs: what takes a virtual machine for a call, and calls one of its entries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from tkc.runtime.cuda_graphs import Retaining, Run
from tkc.runtime.loaded_code import Machine
from tkc.runtime.machines import Machines


def launching(machines: Machines[Machine], weights: Sequence[Any], computed: int) -> Run:
    """How checked inputs become outputs, kernel by kernel. There are ``computed`` ones; behind them come updates."""

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        machine = machines.take()
        try:
            outputs = machine.main(*inputs, *weights)
        finally:
            machines.give_back(machine)
        return _tensors(outputs, computed)

    return run


def retaining(machines: Machines[Machine], weights: Sequence[Any], computed: int) -> Retaining:
    """The same by the entry that also returns the memory it computed in."""

    def run(inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int, Any]:
        machine = machines.take()
        try:
            assert machine.retaining is not None
            outputs, sizes, storages = machine.retaining(*inputs, *weights)
        finally:
            machines.give_back(machine)
        return _tensors(outputs, computed), sum(sizes), storages

    return run


def on_callers_stream(run: Run) -> Run:
    """``run`` of a model without inputs, which are what tells other models' code its caller's stream."""
    import tvm_ffi

    def on_stream(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with tvm_ffi.use_torch_stream():
            return run(inputs)

    return on_stream


def _tensors(outputs: Any, computed: int) -> list[torch.Tensor]:
    """The first ``computed`` of an array of TVM's."""
    item = _item()  # an array's own indexing and slicing take three times as long
    found = (item(outputs, position) for position in range(computed))
    # What a call with tensors of PyTorch's returns holds such; one of weights alone does not.
    return [output if isinstance(output, torch.Tensor) else from_dlpack(output) for output in found]


@functools.cache
def _item() -> Callable[[Any, int], Any]:
    import tvm_ffi

    item: Callable[[Any, int], Any] = tvm_ffi.get_global_func("ffi.ArrayGetItem")
    return item
