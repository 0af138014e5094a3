"""Runs modules on the CPU with each kernel's PyTorch reference in its place, to test rules without kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import tvm
import tvm_ffi
from torch import nn
from torch.export import Dim
from torch.utils.dlpack import from_dlpack
from tvm import relax
from tvm.ir import GlobalVar, IRModule

from tkc.frontend.torch.importer import import_torch
from tkc.kernels import KernelRequest, Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.rule import Rule
from tkc.passes.rules.table import RULES
from tkc.passes.substitute_kernels import SubstituteKernels, Substitution, SubstitutionReport, called_kernels

CPU = Target.parse("cpu")
TOKENS = Dim("tokens", min=2, max=1024)


def imported(
    function: Callable[..., object], *examples: torch.Tensor, symbolic: Collection[int] | None = None
) -> IRModule:
    """``function`` as the PyTorch frontend and canonicalization make it.

    The first axis of the examples at the positions ``symbolic`` (by default, of those with several axes) is one
    symbolic size.
    """

    class Model(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> object:
            return function(*inputs)

    if symbolic is None:
        symbolic = [position for position, example in enumerate(examples) if example.dim() > 1]
    axes = tuple({0: TOKENS} if position in symbolic else None for position in range(len(examples)))
    model = import_torch(Model(), examples, dynamic_shapes={"inputs": axes})
    assert not model.parameters
    canonicalize: Any = Canonicalize()  # TVM's decorator makes it callable
    return canonicalize(model.module)


def substituted(
    module: IRModule, rules: Sequence[Rule[Any]] = RULES, target: Target = CPU
) -> tuple[IRModule, SubstitutionReport]:
    """``module`` with every kernel that exists, well formed, and the report."""
    module, report = SubstituteKernels(target, "all", rules)(module)
    relax.analysis.well_formed(module)
    return module, report


def evaluated(module: IRModule, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What ``main`` returns for ``inputs``, as a flat list."""
    for _, request, _ in kernel_requests(module):
        tvm_ffi.register_global_func(request.symbol, _reference(request), override=True)
    code = tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    machine = relax.VirtualMachine(code, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.from_dlpack, inputs))
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [from_dlpack(value) for value in results]


def checked_substitutions(
    module: IRModule, *inputs: torch.Tensor, rules: Sequence[Rule[Any]] = RULES, rtol: float = 1e-5
) -> list[Substitution]:
    """What was substituted in ``module``, which must compute the same for ``inputs`` as before.

    ``rtol`` is relative to each result's largest magnitude.
    """
    rewritten, report = substituted(module, rules)
    for found, expected in zip(evaluated(rewritten, *inputs), evaluated(module, *inputs), strict=True):
        assert found.dtype == expected.dtype
        if expected.is_floating_point():
            found, expected = found.double(), expected.double()
        torch.testing.assert_close(found, expected, rtol=0, atol=rtol * expected.abs().max().item())
    return list(report.substitutions)


def refusal_reasons(module: IRModule, rules: Sequence[Rule[Any]] = RULES) -> list[str]:
    """Why the near misses in ``module`` keep their operators; nothing in it may be substituted."""
    _, report = substituted(module, rules)
    assert report.substitutions == ()
    return [refused.reason for refused in report.refusals]


def _reference(request: KernelRequest) -> Callable[..., None]:
    inputs = len(request.spec.inputs(request.parameters))

    def call(*tensors: tvm.runtime.Tensor) -> None:
        # Kernels read strides, and here they must be those of compact tensors.
        assert all(t.strides == torch.empty(t.shape, device="meta").stride() for t in tensors)
        results = request.spec.reference(request.parameters, *map(_to_torch, tensors[:inputs]))
        for out, result in zip(tensors[inputs:], results, strict=False):
            assert (tuple(out.shape), f"torch.{out.dtype}") == (tuple(result.shape), str(result.dtype))
            out.copyfrom(_to_numpy(result))

    return call


def _to_torch(tensor: tvm.runtime.Tensor) -> torch.Tensor:
    """A copy, because a kernel's arguments do not own their memory; by its bits, because NumPy lacks dtypes."""
    array, dtype = tensor.numpy(), getattr(torch, str(tensor.dtype))
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    name = str(tensor.dtype).removeprefix("torch.")
    bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return bits.view(getattr(ml_dtypes, name, name)).reshape(tensor.shape)


def kernel_requests(module: IRModule) -> list[tuple[GlobalVar, KernelRequest, int]]:
    """Every library that ``module`` may call: the function that does, its request, and from how many places."""
    return [(name, request, count) for name, kernel, count in called_kernels(module) for request in kernel.requests]
