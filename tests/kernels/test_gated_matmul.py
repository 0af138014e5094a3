"""The gated matrix product: its kernels against PyTorch, and the choices its spec makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.kernels.built_kernel import BuiltKernel, build, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.gated_matmul.spec import GatedMatmul

SPEC = GatedMatmul()
CPU = Target("cpu")
HOPPER = Target("cuda", "sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def requests(parameters: GatedMatmulParameters, target: Target) -> list[KernelRequest]:
    """A request for each configuration."""
    return [KernelRequest(SPEC.name, parameters, c, target) for c in SPEC.configurations(parameters, target)]


def inputs(parameters: GatedMatmulParameters, m: int, device: str = "cpu") -> list[torch.Tensor]:
    """Random inputs, the weights scaled so that the products have the size of one."""
    torch.manual_seed(m)
    tensors = []
    for tensor in SPEC.inputs(parameters):
        shape = [m if dim == "m" else dim for dim in tensor.shape]
        is_weight = tensor.name in ("gate", "up", "gate_up")
        values = torch.randn(shape, device=device) * (parameters.k**-0.5 if is_weight else 1.0)
        tensors.append(values.to(getattr(torch, tensor.dtype)))
    return tensors


def check(kernels: Iterable[BuiltKernel], rows: Sequence[int], device: str = "cpu") -> None:
    """Each kernel's output is the reference's for each number of rows; one build serves them all."""
    for kernel in kernels:
        parameters = kernel.request.parameters
        for m in rows:
            tensors = inputs(parameters, m, device)
            (expected,), (out,) = SPEC.reference(parameters, *tensors), kernel(*tensors)
            tolerance = TOLERANCE[parameters.dtype] * (1 + expected.float().abs().max().item())
            error = (out.float() - expected.float()).abs().max().item()
            assert error <= tolerance, f"{kernel.request}, {kernel.request.configuration}, m={m}: {error}"


def test_reference_is_pytorchs_swiglu() -> None:
    """The reference against the plainest way to say it, with separate and with packed weights."""
    a, gate, up, gate_bias, up_bias = inputs(GatedMatmulParameters(6, 4, "float32", bias=True), 3)
    expected = F.silu(F.linear(a, gate, gate_bias)) * F.linear(a, up, up_bias)
    separate = GatedMatmulParameters(6, 4, "float32", bias=True)
    torch.testing.assert_close(SPEC.reference(separate, a, gate, up, gate_bias, up_bias)[0], expected)
    packed = GatedMatmulParameters(6, 4, "float32", "kn", packed=True, bias=True)
    weight, bias = torch.cat([gate.T, up.T], 1), torch.cat([gate_bias, up_bias])
    torch.testing.assert_close(SPEC.reference(packed, a, weight, bias)[0], expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "parameters",
    [
        GatedMatmulParameters(70, 67, "float32"),
        GatedMatmulParameters(70, 67, "float32", "kn", "gelu", bias=True),
        GatedMatmulParameters(70, 67, "bfloat16", activation="gelu_tanh", packed=True, bias=True),
        GatedMatmulParameters(70, 67, "float16", "kn", "relu", packed=True),
    ],
    ids=str,
)
def test_cpu_kernels_agree_with_pytorch(builder: KernelBuilder, parameters: GatedMatmulParameters) -> None:
    """Sizes that no tile divides, and fewer rows than one tile, over both layouts and forms of the weights."""
    wanted = requests(parameters, CPU)
    check(build(builder, wanted if parameters.activation == "silu" else wanted[:1]), rows=(1, 3, 17))


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 20), st.booleans())
def test_cpu_kernels_take_any_size(builder: KernelBuilder, n: int, k: int, m: int, packed: bool) -> None:
    """Sizes below one tile or one vector register included."""
    check(build(builder, requests(GatedMatmulParameters(n, k, "float32", packed=packed), CPU)[:1]), rows=(m,))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str) -> None:
    """Both weights' tiles fit into shared memory, and there are several to choose from, small ones included."""
    target = Target("cuda", arch)
    configurations = SPEC.configurations(GatedMatmulParameters(14336, 4096, "bfloat16"), target)
    assert max(c.shared_memory(weights=2) for c in configurations) <= target.shared_memory
    assert len(set(configurations)) == len(configurations) >= 6
    assert configurations[0].block_m >= 128 and min(c.block_m for c in configurations) == 16


def test_operands_that_tma_cannot_load_get_no_wgmma() -> None:
    """On Hopper, WGMMA is only for rows that start at multiples of 16 bytes, which packing may change."""
    odd = GatedMatmulParameters(500, 512, "bfloat16", "kn")
    assert all(c.block_m < 64 for c in SPEC.configurations(odd, HOPPER))
    packed = GatedMatmulParameters(500, 512, "bfloat16", "kn", packed=True)
    assert SPEC.configurations(packed, HOPPER)[0].block_m == 128


def test_support_and_benefit() -> None:
    """Float32 on a GPU is refused, and the CPU and tiny products are left to the graph compiler, each with a reason."""
    single, half = GatedMatmulParameters(64, 64, "float32"), GatedMatmulParameters(64, 64, "float16")
    assert "TF32" in (SPEC.unsupported(single, HOPPER) or "")
    assert SPEC.unsupported(single, CPU) is None and SPEC.unsupported(half, HOPPER) is None
    assert SPEC.beneficial(single, CPU) is not None and SPEC.beneficial(half, HOPPER) is None
    assert "k=4" in (SPEC.beneficial(GatedMatmulParameters(64, 4, "float16"), HOPPER) or "")


@pytest.mark.parametrize("packed", [False, True])
def test_work_counts_every_tensor(packed: bool) -> None:
    """FLOPs and bytes of a small product, counted by hand."""
    work = SPEC.work(GatedMatmulParameters(8, 4, "bfloat16", packed=packed, bias=True), {"m": 2})
    assert work.flops == 2 * (2 * 2 * 8 * 4)
    assert work.bytes == 2 * (2 * 4 + 2 * 4 * 8 + 2 * 8 + 2 * 8)


_PACKED = GatedMatmulParameters(200, 512, "bfloat16", "kn", "gelu", packed=True, bias=True)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "parameters", "few"),
    [
        ("sm_80", GatedMatmulParameters(200, 512, "float16", "kn", packed=True), True),
        ("sm_90a", _PACKED, False),
        ("sm_90a", _PACKED, True),
        ("sm_120", GatedMatmulParameters(256, 500, "bfloat16", activation="gelu_tanh"), False),
    ],
)
@pytest.mark.daily(2)
def test_cuda_kernels_compile(builder: KernelBuilder, arch: str, parameters: GatedMatmulParameters, few: bool) -> None:
    """Where one product takes both weights (the most rows) and where two do (few), it becomes machine code."""
    every = requests(parameters, Target("cuda", arch))
    wanted = min(every, key=lambda request: request.configuration.block_m) if few else every[0]
    assert arch.encode() in builder.build([wanted])[wanted].path.read_bytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [
        GatedMatmulParameters(1024, 512, "bfloat16"),
        GatedMatmulParameters(1000, 520, "float16", "kn", "gelu", packed=True, bias=True),
        GatedMatmulParameters(264, 200, "bfloat16", "kn", "gelu_tanh", bias=True),
        GatedMatmulParameters(1001, 99, "bfloat16", activation="relu", packed=True, bias=True),
        GatedMatmulParameters(1000, 264, "bfloat16", packed=True),
        GatedMatmulParameters(7, 64, "float16", "kn"),
    ],
    ids=str,
)
def test_gpu_kernels_agree_with_pytorch(builder: KernelBuilder, parameters: GatedMatmulParameters) -> None:
    """Every configuration for this GPU, both forms of the weights, and sizes that no tile divides."""
    check(build(builder, gpu_requests(SPEC.name, parameters)), (1, 17, 127, 128, 4097), "cuda")
