"""The grouped matrix product: its kernels against PyTorch over ways to group rows, and the choices its spec makes."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmul, GroupedMatmulConfiguration

SPEC = GroupedMatmul()
CPU = Target("cpu")
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}

Kernels = dict[GroupedMatmulConfiguration, tvm_ffi.Function]


def build(
    builder: KernelBuilder,
    parameters: GroupedMatmulParameters,
    configurations: Sequence[GroupedMatmulConfiguration],
    target: Target,
) -> Kernels:
    """The callable kernels, by configuration."""
    libraries = builder.build(KernelRequest(SPEC.name, parameters, c, target) for c in configurations)
    return {r.configuration: tvm_ffi.load_module(str(lib.path))[r.symbol] for r, lib in libraries.items()}


def check(kernels: Kernels, parameters: GroupedMatmulParameters, sizes: Sequence[int], rest: int, device: str) -> None:
    """Each kernel's output is the reference's, for groups of ``sizes`` rows and ``rest`` rows that belong to none.

    Gathered rows come from fewer tokens than there are rows, in any order, and some numbers are out of bounds.
    """
    p = parameters
    dtype = getattr(torch, p.dtype)
    torch.manual_seed(0)
    m = sum(sizes) + rest
    tokens = m if p.rows is None else m // 3 + 1
    a = torch.randn(tokens, p.k, device=device).to(dtype)
    rows = [] if p.rows is None else [torch.randint(-1, tokens + 1, (m,), device=device).to(getattr(torch, p.rows))]
    b = (torch.randn(p.weight_shape, device=device) * p.k**-0.5).to(dtype)
    offsets = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    (expected,) = SPEC.reference(p, a, *rows, b, offsets)
    for configuration, kernel in kernels.items():
        out = torch.full_like(expected, float("nan"))
        kernel(a, *rows, b, offsets, out)
        tolerance = TOLERANCE[p.dtype] * (1 + expected.float().abs().max().item())
        error = (out.float() - expected.float()).abs().max().item()
        assert error <= tolerance, f"{p}, {configuration}, sizes {sizes}, rest {rest}: error {error} > {tolerance}"


@pytest.mark.daily(1)
@pytest.mark.parametrize("layout", ["gnk", "gkn"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cpu_kernels_agree_with_pytorch(builder: KernelBuilder, layout: str, dtype: str) -> None:
    """Groups that are empty, shorter than a tile, and longer; rows past the last group become zero."""
    parameters = GroupedMatmulParameters(groups=5, n=70, k=67, dtype=dtype, weight_layout=layout)
    configurations = SPEC.configurations(parameters, CPU)[: None if dtype == "float32" else 1]
    kernels = build(builder, parameters, configurations, CPU)
    for sizes, rest in (((3, 0, 17, 1, 0), 0), ((0, 0, 0, 0, 0), 4), ((0, 9, 0, 0, 2), 3), ((1, 0, 0, 0, 0), 0)):
        check(kernels, parameters, sizes, rest, "cpu")


@pytest.mark.parametrize(("layout", "dtype"), [("gnk", "bfloat16"), ("gkn", "float32")])
def test_cpu_gated_kernels_agree_with_pytorch(builder: KernelBuilder, layout: str, dtype: str) -> None:
    """The gate's half of each weight comes first; rows past the last group become zero."""
    parameters = GroupedMatmulParameters(3, n=70, k=67, dtype=dtype, weight_layout=layout, gated="silu")
    kernels = build(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU)
    for sizes, rest in (((3, 0, 17), 0), ((0, 9, 2), 3)):
        check(kernels, parameters, sizes, rest, "cpu")


@pytest.mark.daily(1)
@pytest.mark.parametrize(("rows", "gated"), [("int32", None), ("int64", "silu")])
def test_cpu_kernels_fetch_rows_by_number(builder: KernelBuilder, rows: str, gated: str | None) -> None:
    """Rows come from where their numbers say, several from one token; numbers out of bounds mean the last or first."""
    parameters = GroupedMatmulParameters(3, n=20, k=19, dtype="float32", gated=gated, rows=rows)
    kernels = build(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU)
    for sizes, rest in (((3, 0, 17), 0), ((0, 9, 2), 3)):
        check(kernels, parameters, sizes, rest, "cpu")


@pytest.mark.speed
def test_rows_fetched_by_number_cost_the_cpu_little(builder: KernelBuilder) -> None:
    """Less than half more than rows in order take. Numbers clamped or checked at every use took two to six times that.

    By turns, and the best ratio of three counts, since others may use the machine's cores.
    """
    in_order = GroupedMatmulParameters(groups=8, n=192, k=256, dtype="float32", gated="silu")
    times: dict[str | None, list[float]] = {None: [], "int64": []}
    runs = {rows: _cpu_run(builder, replace(in_order, rows=rows)) for rows in times}
    for _ in range(3):
        for rows, run in runs.items():
            times[rows].append(min(timeit.repeat(run, number=1, repeat=3)))
    ratios = [fetched / plain for plain, fetched in zip(*times.values(), strict=True)]
    assert min(ratios) < 1.5, times


def _cpu_run(builder: KernelBuilder, parameters: GroupedMatmulParameters) -> Callable[[], object]:
    """A call of the default kernel for 64 rows of each group."""
    (kernel,) = build(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU).values()
    m = 64 * parameters.groups
    numbers = [] if parameters.rows is None else [torch.randperm(m)]
    offsets = torch.arange(64, m + 1, 64, dtype=torch.int32)
    out = torch.empty(m, parameters.n)
    return partial(kernel, torch.randn(m, parameters.k), *numbers, torch.randn(parameters.weight_shape), offsets, out)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 12), min_size=3, max_size=3), st.integers(0, 5))
def test_cpu_kernel_takes_any_grouping(builder: KernelBuilder, sizes: list[int], rest: int) -> None:
    """One build serves every number of rows and every division of them."""
    parameters = GroupedMatmulParameters(groups=3, n=3, k=5, dtype="float32")
    kernels = build(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU)
    if sum(sizes) + rest > 0:
        check(kernels, parameters, sizes, rest, "cpu")


def test_reference_is_a_loop_over_experts() -> None:
    """The reference against the plainest way to say it."""
    parameters = GroupedMatmulParameters(groups=2, n=3, k=4, dtype="float32", weight_layout="gkn")
    a, b = torch.randn(6, 4), torch.randn(2, 4, 3)
    (out,) = SPEC.reference(parameters, a, b, torch.tensor([2, 5], dtype=torch.int32))
    torch.testing.assert_close(out, torch.cat([a[:2] @ b[0], a[2:5] @ b[1], torch.zeros(1, 3)]))


def test_gated_reference_is_pytorchs_swiglu() -> None:
    """The gated reference against the plain one and PyTorch's activation."""
    a, b = torch.randn(5, 4), torch.randn(2, 6, 4)
    offsets = torch.tensor([2, 4], dtype=torch.int32)
    (products,) = SPEC.reference(GroupedMatmulParameters(2, 6, 4, "float32"), a, b, offsets)
    (out,) = SPEC.reference(GroupedMatmulParameters(2, 3, 4, "float32", gated="silu"), a, b, offsets)
    torch.testing.assert_close(out, torch.nn.functional.silu(products[:, :3]) * products[:, 3:])


def test_gathered_reference_is_an_index() -> None:
    """The gathered reference against PyTorch's indexing and the plain one."""
    a, b = torch.randn(3, 4), torch.randn(2, 5, 4)
    rows, offsets = torch.tensor([2, 0, 0, 1]), torch.tensor([2, 4], dtype=torch.int32)
    (expected,) = SPEC.reference(GroupedMatmulParameters(2, 5, 4, "float32"), a[rows], b, offsets)
    (out,) = SPEC.reference(GroupedMatmulParameters(2, 5, 4, "float32", rows="int64"), a, rows, b, offsets)
    torch.testing.assert_close(out, expected)


def test_rows_are_fetched_where_tensor_maps_load_the_weights() -> None:
    """Hopper, and there not a depth that slices do not divide; elsewhere on GPUs the reason is given."""
    parameters = GroupedMatmulParameters(4, 64, 128, "bfloat16", rows="int64")
    assert all(c.blocks for c in SPEC.configurations(parameters, Target("cuda", "sm_90a")))
    assert SPEC.unsupported(parameters, Target("cuda", "sm_90a")) is None and SPEC.unsupported(parameters, CPU) is None
    for unfit, arch in (
        (parameters, "sm_80"),
        (replace(parameters, k=120), "sm_90a"),
        (replace(parameters, n=60), "sm_90a"),
    ):
        assert "by their numbers" in (SPEC.unsupported(unfit, Target("cuda", arch)) or "")


@pytest.mark.parametrize(("gated", "weights"), [(None, 1), ("silu", 2)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str, gated: str | None, weights: int) -> None:
    """Each configuration's tiles fit into shared memory; some suit many rows a group, some few."""
    target = Target("cuda", arch)
    parameters = GroupedMatmulParameters(128, 1536, 2048, "bfloat16", gated=gated)
    configurations = SPEC.configurations(parameters, target)
    assert max(c.shared_memory(weights) for c in configurations) <= target.shared_memory
    assert {16, 32, 64, 128} <= {c.block_m for c in configurations}


def test_float32_is_for_the_cpu_alone() -> None:
    """A GPU refuses float32 with a reason; the CPU takes it."""
    parameters = GroupedMatmulParameters(2, 8, 8, "float32")
    assert "TF32" in (SPEC.unsupported(parameters, Target("cuda", "sm_90a")) or "")
    assert SPEC.unsupported(parameters, CPU) is None and SPEC.beneficial(parameters, CPU) is None


def test_work_reads_no_more_weights_than_rows_can_use() -> None:
    """With fewer rows than groups, one weight a row is the least that is read."""
    parameters = GroupedMatmulParameters(groups=8, n=4, k=2, dtype="bfloat16")
    few, many = SPEC.work(parameters, {"m": 3}), SPEC.work(parameters, {"m": 100})
    assert few.bytes == 2 * (3 * 2 + 3 * 8 + 3 * 4) + 4 * 8
    assert many.bytes == 2 * (100 * 2 + 8 * 8 + 100 * 4) + 4 * 8
    assert many.flops == 2 * 100 * 4 * 2
    gated = SPEC.work(replace(parameters, gated="silu"), {"m": 100})
    assert (gated.flops, gated.bytes) == (2 * many.flops, many.bytes + 2 * 8 * 8)


@pytest.mark.daily(2)
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "gated"), [("sm_80", None), ("sm_89", "silu"), ("sm_90a", None), ("sm_90a", "silu"), ("sm_120", None)]
)
def test_cuda_kernels_compile(builder: KernelBuilder, arch: str, gated: str | None) -> None:
    """The configuration with the most threads becomes machine code for the architecture."""
    target = Target("cuda", arch)
    parameters = GroupedMatmulParameters(groups=16, n=256, k=512, dtype="bfloat16", gated=gated)
    widest = max(SPEC.configurations(parameters, target), key=lambda configuration: configuration.threads)
    request = KernelRequest(SPEC.name, parameters, widest, target)
    assert arch.encode() in builder.build([request])[request].path.read_bytes()


@pytest.mark.nvcc
@pytest.mark.daily(3)
def test_every_kernel_that_fetches_rows_compiles(builder: KernelBuilder) -> None:
    """All of its configurations become machine code for Hopper."""
    target = Target("cuda", "sm_90a")
    parameters = GroupedMatmulParameters(groups=16, n=256, k=512, dtype="bfloat16", gated="silu", rows="int64")
    requests = [KernelRequest(SPEC.name, parameters, c, target) for c in SPEC.configurations(parameters, target)]
    for library in builder.build(requests).values():
        assert b"sm_90a" in library.path.read_bytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [
        GroupedMatmulParameters(8, 384, 512, "bfloat16"),
        GroupedMatmulParameters(8, 200, 264, "float16", "gkn"),
        GroupedMatmulParameters(5, 100, 99, "bfloat16"),
        GroupedMatmulParameters(1, 64, 64, "float16"),
        GroupedMatmulParameters(130, 96, 64, "bfloat16", "gkn"),
        GroupedMatmulParameters(8, 384, 512, "bfloat16", gated="silu"),
        GroupedMatmulParameters(8, 200, 264, "float16", "gkn", gated="gelu"),
        GroupedMatmulParameters(5, 100, 99, "bfloat16", gated="gelu_tanh"),
        GroupedMatmulParameters(8, 384, 512, "bfloat16", gated="silu", rows="int64"),
        GroupedMatmulParameters(130, 200, 256, "float16", "gkn", gated="gelu", rows="int32"),
        GroupedMatmulParameters(8, 264, 384, "bfloat16", rows="int32"),
    ],
    ids=str,
)
def test_gpu_kernels_agree_with_pytorch(builder: KernelBuilder, parameters: GroupedMatmulParameters) -> None:
    """Every configuration for this GPU, over empty, short, long and lopsided groups, and rows without a group."""
    major, minor = torch.cuda.get_device_capability()
    target = Target("cuda", f"sm_{major}{minor}{'a' if major == 9 else ''}")
    kernels = build(builder, parameters, SPEC.configurations(parameters, target), target)
    groups = parameters.groups
    generator = torch.Generator().manual_seed(1)
    scattered = torch.randint(groups, (1021,), generator=generator).bincount(minlength=groups).tolist()
    alone, uneven = [0] * groups, [37 * (g % 4) for g in range(groups)]
    alone[groups // 2] = 1201  # more tiles than a band of them has rows
    for sizes, rest in ((scattered, 0), (alone, 0), (uneven, 300), ([0] * groups, 1), ([1] * groups, 17)):
        check(kernels, parameters, sizes, rest, "cuda")
