"""Small Relax graphs as scheduled TensorIR, built and run: what the tests of the schedule rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
import tvm
from torch.utils.dlpack import from_dlpack
from tvm import relax, tirx

from tkc.kernels.target import Target
from tkc.pipeline import fusion_stages, lowering_stage
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.schedule_module import ScheduledFunction, ScheduleModule
from tkc.schedules.target import tvm_target

CPU = Target("cpu")
Dimension: TypeAlias = int | tirx.Var
Input = tuple[tuple[Dimension, ...], str]


class Model(torch.nn.Module):
    """A function of one tensor as a model."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the function makes of ``x``."""
        return self.function(x)


class Applied(torch.nn.Module):
    """A function of tensors as a model, whose dynamic shapes are those of ``args``."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """What the function makes of ``args``."""
        return self.function(*args)


def size(name: str) -> tirx.Var:
    """A dimension known only at run time."""
    return tirx.Var(name, "int64")


def graph(inputs: Sequence[Input], body: Callable[..., relax.Expr]) -> tvm.IRModule:
    """A module whose ``main`` takes ``inputs`` (shape, dtype) and returns what ``body(builder, *inputs)`` emits."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", relax.TensorStructInfo(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(builder, *variables)))
        builder.emit_func_output(result)
    return builder.get()


def fused(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """``module`` with its operators as fused TensorIR functions, as the pipeline hands them to scheduling."""
    (fuse,) = (stage for stage in fusion_stages() if stage.name == "fuse")
    with tvm_target(target):
        return tvm.transform.Sequential(fuse.passes)(module)


def scheduled(module: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, list[ScheduledFunction]]:
    """``module`` fused and scheduled, and what scheduled each function."""
    module, report = ScheduleModule(target, tvm_target(target))(fused(module, target))
    return module, list(report)


def build(module: tvm.IRModule, target: Target) -> tvm.runtime.Executable:
    """The executable of a scheduled module; code generation runs in full."""
    machine_target = tvm_target(target)
    with machine_target:
        return relax.build(
            tvm.transform.Sequential(lowering_stage(target).passes)(module),
            target=machine_target,
            relax_pipeline=None,
            tir_pipeline=LOWERING,
        )


def on_cpu(module: tvm.IRModule) -> tuple[Callable[..., torch.Tensor], list[ScheduledFunction]]:
    """``module`` scheduled and built for this machine's CPU as a function of tensors, and what scheduled it."""
    module, report = scheduled(module, CPU)
    machine = relax.VirtualMachine(build(module, CPU), tvm.cpu())

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return from_dlpack(machine["main"](*(_aligned(tensor) for tensor in inputs)))

    return run, report


def _aligned(tensor: torch.Tensor) -> tvm.runtime.Tensor:
    """A copy in memory aligned as TVM wants it."""
    copy = tvm.runtime.empty(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    from_dlpack(copy).copy_(tensor)
    return copy


def random(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    """Normal random numbers."""
    generator = np.random.default_rng([seed, *shape])
    return torch.from_numpy(generator.standard_normal(shape).astype("float32")).to(getattr(torch, dtype))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference relative to the largest expected magnitude; shapes and dtypes must agree."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    difference = (found.to(torch.float64) - expected.to(torch.float64)).abs().max()
    return float(difference / expected.to(torch.float64).abs().max().clamp(min=1e-30))
