"""The batched matrix product: its kernels against PyTorch, and the choices its spec makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import BuiltKernel, build, build_for, gpu_requests
from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.batched_matmul.spec import BatchedMatmul

SPEC = BatchedMatmul()
CPU, HOPPER = Target("cpu"), Target("cuda", "sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def check(kernel: BuiltKernel, batch: int, m: int, n: int, k: int, device: str = "cpu") -> None:
    """The kernel's output is the reference's."""
    p: BatchedMatmulParameters = kernel.request.parameters
    dtype = getattr(torch, p.dtype)
    torch.manual_seed(0)
    a = torch.randn(batch, m, k, device=device).to(dtype)
    b = (torch.randn(batch, *((n, k) if p.layout == "nk" else (k, n)), device=device) * k**-0.5).to(dtype)
    (expected,), (out,) = SPEC.reference(p, a, b), kernel(a, b, n=n)
    error = (out.float() - expected.float()).abs().max().item()
    tolerance = TOLERANCE[p.stored_dtype] * (1 + expected.float().abs().max().item())
    assert error <= tolerance, f"{kernel.request}, {batch} x {m} x {n} x {k}: error {error} > {tolerance}"


@pytest.mark.daily(1)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("float32", None), ("float16", None), ("bfloat16", "float32")])
def test_cpu_kernels_agree_with_pytorch(builder: KernelBuilder, layout: str, dtype: str, out_dtype: str | None) -> None:
    """Rows fewer and more than a tile's; columns and depth that nothing divides."""
    kernel = build_for(builder, SPEC.name, BatchedMatmulParameters(70, 67, dtype, layout, out_dtype))
    for batch, m in ((1, 1), (3, 17), (2, 4)):
        check(kernel, batch, m, 70, 67)


@pytest.mark.parametrize("layout", ["nk", "kn"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(st.integers(1, 4), *[st.integers(1, 40)] * 3))
def test_one_cpu_kernel_takes_any_sizes(builder: KernelBuilder, layout: str, sizes: tuple[int, int, int, int]) -> None:
    """Columns and depth known at run time only, fewer than a tile's among them."""
    check(build_for(builder, SPEC.name, BatchedMatmulParameters(None, None, "float32", layout)), *sizes)


def test_reference_is_bmm() -> None:
    """The reference against PyTorch's operator, in both layouts."""
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    for layout, right in (("kn", b), ("nk", b.mT)):
        (out,) = SPEC.reference(BatchedMatmulParameters(6, 5, "float32", layout), a, right)
        torch.testing.assert_close(out, torch.bmm(a, b))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str) -> None:
    """Each configuration's tiles fit into shared memory; some suit many rows, some few."""
    target = Target("cuda", arch)
    configurations = SPEC.configurations(BatchedMatmulParameters(512, 64, "bfloat16"), target)
    assert max(c.shared_memory() for c in configurations) <= target.shared_memory
    assert {16, 32, 64, 128} <= {c.block_m for c in configurations}


def test_operands_that_tensor_maps_do_not_describe_are_multiplied_by_small_tiles() -> None:
    """On Hopper, where rows are no multiple of 16 bytes apart, or only calls know how far."""
    queries_and_keys = BatchedMatmulParameters(None, 64, "bfloat16")
    assert max(c.block_m for c in SPEC.configurations(queries_and_keys, HOPPER)) == 128
    for changes in ({"k": None}, {"k": 68}, {"layout": "kn"}):
        unfit = SPEC.configurations(replace(queries_and_keys, **changes), HOPPER)
        assert max(c.block_m for c in unfit) == 32


def test_where_it_pays() -> None:
    """Not on the CPU, nor below a tensor core's tile; float32 where tensor maps describe it."""
    p = BatchedMatmulParameters(64, 64, "bfloat16")
    assert SPEC.unsupported(p, HOPPER) is None and SPEC.beneficial(p, HOPPER) is None
    assert SPEC.unsupported(replace(p, dtype="float32"), HOPPER) is None
    assert "only calls know" in (SPEC.unsupported(replace(p, dtype="float32", n=None), HOPPER) or "")
    assert "smaller than one tensor core tile" in (SPEC.beneficial(replace(p, n=None, k=8), HOPPER) or "")
    assert SPEC.unsupported(p, CPU) is None and SPEC.beneficial(p, CPU) is not None


def test_work_counts_every_entry() -> None:
    """Operands read once, the output written once, in its own dtype."""
    work = SPEC.work(BatchedMatmulParameters(None, 4, "bfloat16", out_dtype="float32"), {"batch": 3, "m": 5, "n": 2})
    assert (work.flops, work.bytes) == (2 * 3 * 5 * 2 * 4, 3 * (2 * (5 * 4 + 2 * 4) + 4 * 5 * 2))


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "parameters"),
    [
        ("sm_80", BatchedMatmulParameters(512, 64, "bfloat16")),
        ("sm_90a", BatchedMatmulParameters(512, 64, "bfloat16")),
        ("sm_90a", BatchedMatmulParameters(None, 64, "float16", out_dtype="float32")),
        ("sm_90a", BatchedMatmulParameters(64, None, "bfloat16", "kn")),
        ("sm_90a", BatchedMatmulParameters(128, 512, "float32", "kn")),
    ],
    ids=str,
)
@pytest.mark.daily(2)
def test_cuda_kernels_compile(builder: KernelBuilder, arch: str, parameters: BatchedMatmulParameters) -> None:
    """The default configuration becomes machine code for the architecture."""
    target = Target("cuda", arch)
    request = KernelRequest(SPEC.name, parameters, SPEC.configurations(parameters, target)[0], target)
    assert arch.encode() in builder.build([request])[request].path.read_bytes()


@pytest.mark.daily(1)
def test_copies_that_are_not_tmas_reach_beyond_32_bits() -> None:
    """As many matrices as a grid is high hold more numbers than that."""
    parameters, target = BatchedMatmulParameters(16384, 5120, "bfloat16", "kn"), Target("cuda", "sm_89")
    for configuration in SPEC.configurations(parameters, target)[::2]:
        source = cuda_source(KernelRequest(SPEC.name, parameters, configuration, target))
        copies = [line for line in source.splitlines() if "cp_async_gs" in line]
        assert copies
        assert all("int64_t" in line for line in copies)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [
        BatchedMatmulParameters(512, 64, "bfloat16"),
        BatchedMatmulParameters(200, 264, "float16", "kn"),
        BatchedMatmulParameters(64, 512, "bfloat16", "kn", out_dtype="float32"),
        BatchedMatmulParameters(100, 99, "bfloat16"),
        BatchedMatmulParameters(100, 99, "bfloat16", "kn"),
        BatchedMatmulParameters(None, 64, "bfloat16"),
        BatchedMatmulParameters(64, None, "bfloat16", "kn"),
        BatchedMatmulParameters(None, None, "float16"),
        BatchedMatmulParameters(512, 64, "float32"),
        BatchedMatmulParameters(36, 100, "float32", "kn"),
        BatchedMatmulParameters(64, 512, "float32", "kn", out_dtype="bfloat16"),
    ],
    ids=str,
)
def test_gpu_kernels_agree_with_pytorch(builder: KernelBuilder, parameters: BatchedMatmulParameters) -> None:
    """Every configuration for this GPU: few rows and many, more entries than a grid is high, odd sizes."""
    for kernel in build(builder, gpu_requests(SPEC.name, parameters)):
        for batch, m in ((1, 1), (5, 130), (3, 513), (70_000, 2)):
            check(kernel, batch, m, parameters.n or 77, parameters.k or 83, "cuda")
