"""Runs an imported model on the CPU, through the compiler's own stages but without kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import tvm
from torch.utils.dlpack import from_dlpack
from tvm import relax

from tkc.compilation import Compilation
from tkc.frontend.model import ImportedModel
from tkc.kernels import Target
from tkc.pipeline import generation_stages, substitution_stages
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.target import tvm_target
from tkc.stages import StageRunner

CPU = Target.parse("cpu")


def executable(imported: ImportedModel) -> Callable[..., list[torch.Tensor]]:
    """The model as a function from its flattened tensor inputs to its flattened outputs.

    What it counts of bad indices and divisors is left out.
    """
    target = tvm_target(CPU)
    stages = [*substitution_stages(CPU, "none"), *generation_stages(CPU, target, database=None)]
    with target:
        module = StageRunner().run_stages(Compilation(imported.module), stages).module
        machine = relax.VirtualMachine(
            relax.build(module, target=target, relax_pipeline=None, tir_pipeline=LOWERING), tvm.cpu()
        )
    weights = _to_tvm(imported.parameters.values())

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs = [from_dlpack(output) for output in machine["main"](*_to_tvm(inputs), *weights)]
        if imported.signature.index_flags:
            del outputs[len(imported.signature.outputs) - len(imported.signature.returned)]
        return outputs

    return run


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference, relative to the largest expected magnitude."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.numel() == 0:
        return 0.0
    found, expected = found.to(torch.float64), expected.to(torch.float64)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    if not finite.any():
        return 0.0
    found, expected = found[finite], expected[finite]
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def _to_tvm(tensors: Iterable[torch.Tensor]) -> list[tvm.runtime.Tensor]:
    return [tvm.runtime.from_dlpack(tensor.detach().contiguous()) for tensor in tensors]
