"""Schedules for a GPU run by the CPU, one thread of the GPU's after the other: of rules that use TVM's primitives."""

from __future__ import annotations

from collections.abc import Callable

import torch
import tvm
from torch.utils.dlpack import from_dlpack
from tvm import relax, tirx
from tvm.tirx.stmt_functor import ir_transform

from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import CPU, build, fused
from tkc.contracts import IS_SCHEDULED
from tkc.schedules.blocks import thread_tag
from tkc.schedules.lowering.empty_reductions import begin_before_loops
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target


def _serial(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for a GPU, with its threads one after the other, each of which begins its sum."""

    def loop(node: tirx.For) -> tirx.For | None:
        if thread_tag(node) is None:
            return None
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)

    return begin_before_loops(func.with_body(ir_transform(func.body, None, loop, ["tirx.For"])))


def in_turn(module: tvm.IRModule) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]:
    """``module`` with the schedules for a GPU, run by one thread of the CPU, and which rules those are of."""
    module, rules = fused(module, HOPPER), []
    for variable, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            found = schedule_by_rules(func, HOPPER, tvm_target(HOPPER))
            rules.append(found.rule)
            module[variable] = _serial(found.scheduled).with_attrs({**dict(func.attrs or {}), IS_SCHEDULED: True})
    machine = relax.VirtualMachine(build(module, CPU), tvm.cpu())

    def run(x: torch.Tensor) -> torch.Tensor:
        copy = tvm.runtime.empty(tuple(x.shape), str(x.dtype).removeprefix("torch."))
        from_dlpack(copy).copy_(x)
        return from_dlpack(machine["main"](copy))

    return run, rules
