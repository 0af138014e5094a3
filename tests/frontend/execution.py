"""Runs an imported model on the CPU, without rules, kernels and schedules, to tell whether the import is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import tvm
from tvm import relax

from tkc.frontend.model import ImportedModel
from tkc.passes.lower_attention import LowerAttention
from tkc.passes.lower_float8_casts import LowerFloat8Casts
from tkc.passes.widen_products import WidenProducts


def executable(imported: ImportedModel) -> Callable[..., list[torch.Tensor]]:
    """The model as a function from its flattened tensor inputs to its flattened outputs."""
    lowering = [LowerAttention(), WidenProducts(), LowerFloat8Casts()]
    module = relax.get_pipeline("zero")(tvm.transform.Sequential(lowering)(imported.module))
    quickly_built = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(module, target=quickly_built), tvm.cpu())
    weights = _to_tvm(imported.parameters.values())

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_dlpack(output) for output in machine["main"](*_to_tvm(inputs), *weights)]

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
