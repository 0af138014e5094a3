"""GPU schedules run on the CPU, one thread after the other: right for kernels whose threads exchange nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import tvm
from torch.utils.dlpack import from_dlpack
from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import fused
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target


def run(module: tvm.IRModule, inputs: Sequence[torch.Tensor], shape: Sequence[int], rule: str) -> torch.Tensor:
    """What the one function of ``module``, scheduled for CUDA by ``rule``, makes of ``inputs``."""
    (func,) = (func for _, func in fused(module, HOPPER).functions_items() if isinstance(func, tirx.PrimFunc))
    default = schedule_by_rules(func, HOPPER, tvm_target(HOPPER))
    assert default.rule == rule, (default.rule, default.reason)
    return run_scheduled(default.scheduled, inputs, shape)


def run_scheduled(func: tirx.PrimFunc, inputs: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """The last argument of ``func``, of ``shape``, given the others."""
    serial = func.with_body(ir_transform(func.body, None, _serial, ["tirx.For"])).with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": serial}), target=tvm.target.Target("llvm"))
    result = tvm.runtime.empty(tuple(shape), str(func.buffer_map[func.params[-1]].dtype))
    library["main"](*[tvm.runtime.from_dlpack(tensor.contiguous()) for tensor in inputs], result)
    return from_dlpack(result)


def _serial(loop: tirx.For) -> tirx.For | None:
    if loop.kind not in (tirx.ForKind.THREAD_BINDING, tirx.ForKind.UNROLLED):
        return None
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
