"""Runs modules on the CPU with each kernel's PyTorch reference in its place, to test rules without kernels."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Sequence

import torch
import tvm
import tvm_ffi
from torch import nn
from torch.export import Dim
from tvm import relax
from tvm.ir import IRModule

from tkc.frontend.torch import import_torch
from tkc.kernels import KernelRequest, Target
from tkc.passes.canonicalize import Canonicalize
from tkc.passes.rule import Rule
from tkc.passes.rules import RULES
from tkc.passes.substitute_kernels import SubstituteKernels, Substitution, SubstitutionReport, kernel_requests

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
    return Canonicalize()(model.module)


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
    code = tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    machine = relax.VirtualMachine(code, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.from_dlpack, inputs))
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [torch.from_dlpack(value) for value in results]


def checked_substitutions(
    module: IRModule, *inputs: torch.Tensor, rules: Sequence[Rule] = RULES, rtol: float = 1e-5
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
    return report.substitutions


def refusal_reasons(module: IRModule, rules: Sequence[Rule] = RULES) -> list[str]:
    """Why the near misses in ``module`` keep their operators; nothing in it may be substituted."""
    _, report = substituted(module, rules)
    assert report.substitutions == []
    return [refused.reason for refused in report.refusals]


def _reference(request: KernelRequest) -> Callable[..., None]:
    inputs = len(request.spec.inputs(request.parameters))

    def call(*handles: ctypes.c_void_p) -> None:
        tensors = [_view(handle) for handle in handles]
        results = request.spec.reference(request.parameters, *tensors[:inputs])
        for out, result in zip(tensors[inputs:], results, strict=False):
            assert (out.shape, out.dtype) == (result.shape, result.dtype)
            out.copy_(result)

    return call


class _DLTensor(ctypes.Structure):
    """DLPack's tensor, as a kernel is handed it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _view(handle: ctypes.c_void_p) -> torch.Tensor:
    """The memory that a kernel would work on; kernels need strides, and here they must be those of a compact tensor."""
    tensor = _DLTensor.from_address(handle.value)
    shape, dtype = tensor.shape[: tensor.ndim], _DTYPES[tensor.code, tensor.bits]
    size = math.prod(shape)
    assert bool(tensor.strides) and tensor.strides[: tensor.ndim] == list(torch.empty(shape, device="meta").stride())
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(tensor.data + tensor.byte_offset)
    return torch.frombuffer(memory, dtype=dtype, count=size).reshape(shape)


_DTYPES = {
    (0, 32): torch.int32,
    (0, 64): torch.int64,
    (2, 16): torch.float16,
    (2, 32): torch.float32,
    (4, 16): torch.bfloat16,
    (6, 8): torch.bool,
    (10, 8): torch.float8_e4m3fn,
    (12, 8): torch.float8_e5m2,
}
