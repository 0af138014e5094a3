"""The second entry of a program: what ``main`` gives, and the memory that it was computed in."""

from __future__ import annotations

import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from tkc.contracts import MAIN, RETAINING_MAIN
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.passes.lowering.device_memory import DeviceMemory
from tkc.passes.lowering.plan_memory import PlanMemory
from tkc.passes.lowering.retain_memory import RetainMemory
from tkc.pipeline import PassStage, fusion_stages, lowering_stage
from tkc.schedules.lowering.pipeline import LOWERING


class Named(nn.Module):
    """Returns two results and one of its inputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x [batch, 8]``, and what comes of it."""
        y = torch.softmax(x @ x.T, -1)
        return y @ x, x, y.sum(0)


class Echo(nn.Module):
    """Allocates nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` itself."""
        return x


def machine(model: nn.Module) -> relax.VirtualMachine:
    """The model with a symbolic batch, lowered as for a GPU and built for the CPU."""
    dim = torch.export.Dim("batch", max=64)
    module = import_model(model, (torch.randn(4, 8),), None, ({0: dim},)).module
    gpu_lowering = lowering_stage(Target.parse("cuda:sm_90a"))
    # TVM's own pool: PyTorch's allocator is linked into code for a GPU.
    passes = tuple(each for each in gpu_lowering.passes if each.info.name != DeviceMemory().info.name)
    stages: list[PassStage] = [*fusion_stages(), PassStage(gpu_lowering.name, passes)]
    target = tvm.target.Target("llvm")
    with target:
        for stage in stages:
            module = tvm.transform.Sequential(stage.passes)(module)
        return relax.VirtualMachine(
            relax.build(module, target=target, relax_pipeline=None, tir_pipeline=LOWERING), tvm.cpu()
        )


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_gives_the_outputs_the_bytes_and_the_memory(batch: int) -> None:
    """Both entries agree, and every output has room in what is held."""
    built = machine(Named())
    x = torch.randn(batch, 8)
    expected = [torch.from_dlpack(output) for output in built["main"](x)]
    outputs, sizes, storages = built[RETAINING_MAIN](x)
    torch.testing.assert_close([torch.from_dlpack(output) for output in outputs], expected)
    assert len(sizes) == len(storages) and sum(sizes) >= sum(output.nbytes for output in (expected[0], expected[2]))


def test_what_is_held_is_not_given_to_the_next_call() -> None:
    """Outputs stay as they are while the memory is held, whoever computes next."""
    built = machine(Named())
    x = torch.randn(16, 8)
    outputs, _, held = built[RETAINING_MAIN](x)
    before = torch.from_dlpack(outputs[0]).clone()
    others = [built[RETAINING_MAIN](torch.randn(16, 8)) for _ in range(4)]
    assert torch.equal(torch.from_dlpack(outputs[0]), before)
    addresses = [torch.from_dlpack(result[0][0]).data_ptr() for result in others]
    assert torch.from_dlpack(outputs[0]).data_ptr() not in addresses and len(held) > 0


def test_a_model_that_allocates_nothing_holds_nothing() -> None:
    """No storage, no bytes, and the input as the output."""
    outputs, sizes, storages = machine(Echo())[RETAINING_MAIN](torch.ones(3, 8))
    assert (len(storages), sum(sizes)) == (0, 0) and torch.from_dlpack(outputs[0]).sum() == 24


def test_programs_for_the_cpu_have_one_entry() -> None:
    """CUDA graphs are what the second entry is for."""
    names = [p.info.name for p in lowering_stage(Target.parse("cpu")).passes]
    assert RetainMemory().info.name not in names and PlanMemory().info.name in names


def test_a_program_that_computes_nothing_has_one_entry() -> None:
    """A model may return what is known when it is compiled."""
    builder = relax.BlockBuilder()
    with builder.function(MAIN, []):
        builder.emit_func_output(relax.Tuple([]))
    module = builder.get()
    assert RetainMemory()(module).get_global_vars() == module.get_global_vars()
