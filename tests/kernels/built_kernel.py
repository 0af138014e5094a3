"""Builds kernels and calls them on PyTorch tensors, the way their tests need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import tvm_ffi

from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.spec import TensorType

POISON = 0xA5  # what outputs hold before the call, so that what a kernel leaves unwritten shows


@dataclass(frozen=True)
class BuiltKernel:
    """One built kernel, called with its inputs."""

    request: KernelRequest
    function: Any

    def __call__(self, *inputs: torch.Tensor, **sizes: int) -> tuple[torch.Tensor, ...]:
        """The outputs; ``sizes`` are those that no input has."""
        request, spec = self.request, self.request.spec
        for tensor_type, tensor in zip(spec.inputs(request.parameters), inputs, strict=True):
            named = zip(tensor_type.shape, tensor.shape, strict=True)
            sizes |= {dim: size for dim, size in named if isinstance(dim, str)}
        device = inputs[0].device
        outputs = [_poisoned(t, sizes, device) for t in spec.outputs(request.parameters)]
        workspaces = spec.workspaces(request.parameters, request.configuration)
        self.function(*inputs, *outputs, *(_poisoned(t, sizes, device) for t in workspaces))
        return tuple(outputs)


def build_for(builder: KernelBuilder, name: str, parameters: Any, target: str = "cpu") -> BuiltKernel:
    """The kernel in its default configuration."""
    spec, parsed = SPECS[name], Target.parse(target)
    return build(builder, [KernelRequest(name, parameters, spec.configurations(parameters, parsed)[0], parsed)])[0]


def build(builder: KernelBuilder, requests: Iterable[KernelRequest]) -> list[BuiltKernel]:
    """Each request's kernel."""
    libraries = builder.build(requests).items()
    return [BuiltKernel(request, tvm_ffi.load_module(str(lib.path))[request.symbol]) for request, lib in libraries]


def gpu_requests(name: str, parameters: Any) -> list[KernelRequest]:
    """Every configuration on this machine's GPU."""
    target = gpu_target()
    return [KernelRequest(name, parameters, c, target) for c in SPECS[name].configurations(parameters, target)]


def gpu_target() -> Target:
    """The target of this machine's GPU."""
    major, minor = torch.cuda.get_device_capability()
    return Target.parse(f"cuda:sm_{major}{minor}{'a' if major == 9 else ''}")


def _poisoned(tensor_type: TensorType, sizes: dict[str, int], device: torch.device) -> torch.Tensor:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor_type.shape]
    tensor = torch.empty(shape, dtype=getattr(torch, tensor_type.dtype), device=device)
    tensor.view(torch.uint8).fill_(POISON)
    return tensor
