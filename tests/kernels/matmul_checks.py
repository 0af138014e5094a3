"""Matmul kernels beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.library_calls import without_libraries
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.spec import Matmul, MatmulConfiguration
from tkc.kernels.matmul.tiling import Tiling

SPEC = Matmul()
CPU = Target("cpu")
HOPPER = Target("cuda", "sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def request_for(parameters: MatmulParameters, configuration: MatmulConfiguration, target: Target) -> KernelRequest:
    """The request for one kernel of this family."""
    return KernelRequest(SPEC.name, parameters, configuration, target)


def tilings(parameters: MatmulParameters, target: Target) -> tuple[Tiling, ...]:
    """The configurations that are kernels of ours."""
    return without_libraries(SPEC.configurations(parameters, target))


def inputs(parameters: MatmulParameters, m: int, device: str) -> list[torch.Tensor]:
    """Random inputs, the weight scaled so that the products have the size of one."""
    torch.manual_seed(m)
    tensors = []
    for tensor in SPEC.inputs(parameters):
        shape = [dim if isinstance(dim, int) else m for dim in tensor.shape]
        scale = parameters.k**-0.5 if tensor.name == "b" else 1.0
        tensors.append((torch.randn(shape, device=device) * scale).to(getattr(torch, tensor.dtype)))
    return tensors


def check(
    builder: KernelBuilder,
    parameters: MatmulParameters,
    configurations: tuple[MatmulConfiguration, ...],
    target: Target,
    rows: tuple[int, ...],
) -> None:
    """Each configuration's outputs are the reference's for each number of rows, and nothing else is written.

    One build serves them all.
    """
    device = "cuda" if target.is_cuda else "cpu"
    libraries = builder.build(request_for(parameters, c, target) for c in configurations)
    kernels = {r.configuration: tvm_ffi.load_module(str(lib.path))[r.symbol] for r, lib in libraries.items()}
    for m in rows:
        tensors = inputs(parameters, m, device)
        expected = SPEC.reference(parameters, *tensors)
        for configuration, kernel in kernels.items():
            beyond = [want.new_full((m + 1, want.shape[1]), float("nan")) for want in expected]
            outputs = [tensor[:m] for tensor in beyond]
            scratch = [
                torch.empty([int(dim) for dim in each.shape], dtype=getattr(torch, each.dtype), device=device)
                for each in SPEC.workspaces(parameters, configuration)
            ]
            kernel(*tensors, *outputs, *scratch)
            assert all(tensor[m].isnan().all() for tensor in beyond), f"{parameters}, {configuration}, m={m}: overrun"
            for out, want, out_type in zip(outputs, expected, SPEC.outputs(parameters), strict=True):
                tolerance = TOLERANCE[out_type.dtype] * (1 + want.float().abs().max().item())
                error = (out.float() - want.float()).abs().max().item()
                assert error <= tolerance, f"{parameters}, {configuration}, m={m}: error {error} > {tolerance}"


def default_kernel(builder: KernelBuilder, parameters: MatmulParameters, target: Target) -> Callable[..., object]:
    """The function of the configuration that is taken where nothing was measured."""
    request = request_for(parameters, SPEC.configurations(parameters, target)[0], target)
    return tvm_ffi.load_module(str(builder.build([request])[request].path))[request.symbol]


def check_extreme_values(builder: KernelBuilder, activation: Any, dtype: Any, target: Target) -> None:
    """Of products that are nothing but their bias, PyTorch's values, those that are not finite among them."""
    magnitudes = torch.tensor([0, 1e-30, 0.5, 1, 3, 5.5, 6, 9, 20, 80, 88, 89, 1e4, 1e20, 3e38, torch.inf])
    values = torch.cat([magnitudes, -magnitudes, torch.tensor([torch.nan])])
    values = torch.cat([values, values[:3]])  # a number that tensor maps take
    device = "cuda" if target.is_cuda else "cpu"
    parameters = MatmulParameters(len(values), 64, dtype, bias=True, activation=activation, out_dtype="float32")
    kernel = default_kernel(builder, parameters, target)
    a, b = torch.zeros(3, 64), torch.randn(len(values), 64)
    tensors = [tensor.to(device, getattr(torch, dtype)) for tensor in (a, b, values)]
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's GELU of 3e38 is infinite on some CPUs
        (expected,) = SPEC.reference(parameters, *tensors)
    out = torch.empty_like(expected)
    kernel(*tensors, out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=2e-6, equal_nan=True)
