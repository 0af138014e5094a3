"""Runs modules on the CPU with each kernel replaced by its spec's PyTorch reference, so that rules are tested without any kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import torch
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import IRModule

from tkc.kernels import KernelRequest, Target
from tkc.passes.rule import Rule
from tkc.passes.rules import RULES
from tkc.passes.substitute_kernels import SubstituteKernels, SubstitutionReport, kernel_requests

CPU = Target.parse("cpu")


def substituted(
    module: IRModule, rules: Sequence[Rule] = RULES, target: Target = CPU
) -> tuple[IRModule, SubstitutionReport]:
    """``module`` with every kernel that exists, well formed, and the report."""
    report = SubstitutionReport()
    module = SubstituteKernels(target, "all", report, rules)(module)
    relax.analysis.well_formed(module)
    return module, report


def evaluated(module: IRModule, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What ``main`` returns for ``inputs``, as a flat list."""
    for _, request, _ in kernel_requests(module):
        tvm_ffi.register_global_func(request.symbol, _reference(request), override=True)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.from_dlpack, inputs))
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [torch.from_dlpack(value) for value in results]


def assert_same_results(module: IRModule, *inputs: torch.Tensor, rules: Sequence[Rule] = RULES, rtol: float = 1e-4) -> None:
    """``module`` must compute the same with kernels as without, and some kernel must be in it."""
    rewritten, report = substituted(module, rules)
    assert report.substitutions
    for found, expected in zip(evaluated(rewritten, *inputs), evaluated(module, *inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * expected.double().abs().max().item())


def _reference(request: KernelRequest) -> Callable[..., None]:
    inputs = len(request.spec.inputs(request.parameters))

    def call(*tensors: tvm.runtime.Tensor) -> None:
        results = request.spec.reference(request.parameters, *map(_to_torch, tensors[:inputs]))
        for out, result in zip(tensors[inputs:], results, strict=False):
            out.copyfrom(_to_numpy(result.reshape(tuple(out.shape))))

    return call


def _to_torch(tensor: tvm.runtime.Tensor) -> torch.Tensor:
    """A copy, because a kernel's arguments do not own their memory; by its bits, because NumPy lacks some dtypes."""
    array, dtype = tensor.numpy(), getattr(torch, str(tensor.dtype))
    return torch.from_numpy(array.view(np.uint8).reshape(-1)).view(dtype).reshape(array.shape)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    name = str(tensor.dtype).removeprefix("torch.")
    bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return bits.view(getattr(ml_dtypes, name, name)).reshape(tensor.shape)
