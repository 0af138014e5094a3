"""The matrix product with epilogue: its kernels against PyTorch, and the choices its spec makes."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
import torch
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.built_kernel import gpu_target
from tests.kernels.cuda_source import cuda_source
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.matmul.float32_tilings import shared_memory
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.spec import Matmul, MatmulConfiguration
from tkc.kernels.matmul.tiling import ITEM_BYTES, STORES_IN_FLIGHT, Tiling
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledTiling

SPEC = Matmul()
CPU = Target("cpu")
HOPPER = Target("cuda", "sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}
ROWS = (1, 17, 127, 128, 4097)


def request_for(parameters: MatmulParameters, configuration: MatmulConfiguration, target: Target) -> KernelRequest:
    """The request for one kernel of this family."""
    return KernelRequest(SPEC.name, parameters, configuration, target)


def inputs(parameters: MatmulParameters, m: int, device: str) -> list[torch.Tensor]:
    """Random inputs, the weight scaled so that the products have the size of one."""
    torch.manual_seed(m)
    tensors = []
    for tensor in SPEC.inputs(parameters):
        shape = [m if dim == "m" else dim for dim in tensor.shape]
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
            kernel(*tensors, *outputs)
            assert all(tensor[m].isnan().all() for tensor in beyond), f"{parameters}, {configuration}, m={m}: overrun"
            for out, want, out_type in zip(outputs, expected, SPEC.outputs(parameters), strict=True):
                tolerance = TOLERANCE[out_type.dtype] * (1 + want.float().abs().max().item())
                error = (out.float() - want.float()).abs().max().item()
                assert error <= tolerance, f"{parameters}, {configuration}, m={m}: error {error} > {tolerance}"


def default_kernel(builder: KernelBuilder, parameters: MatmulParameters, target: Target) -> Callable[..., object]:
    """The function of the configuration that is taken where nothing was measured."""
    request = request_for(parameters, SPEC.configurations(parameters, target)[0], target)
    return tvm_ffi.load_module(str(builder.build([request])[request].path))[request.symbol]


def check_extreme_values(builder: KernelBuilder, activation: str, dtype: str, target: Target) -> None:
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


@pytest.mark.parametrize(
    ("capability", "dtypes"), [("AVX2", ("float32", "bfloat16")), ("AVX512", ("float32", "float16"))]
)
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_cpu_kernels_agree_with_pytorch(
    builder: KernelBuilder, layout: str, dtypes: tuple[str, ...], capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that no tile divides, and fewer rows than one tile, with the tiles that suit either kind of CPU."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for dtype in dtypes:
        parameters = MatmulParameters(n=70, k=67, dtype=dtype, weight_layout=layout, bias=True, residual=True)
        configurations = SPEC.configurations(parameters, CPU)
        check(builder, parameters, configurations[: None if dtype == "float32" else 1], CPU, rows=(1, 3, 17, 64))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_cpu_activations_agree_with_pytorch(builder: KernelBuilder, activation: str) -> None:
    """The activation comes after the bias and before the residual."""
    parameters = MatmulParameters(n=5, k=9, dtype="float32", bias=True, activation=activation, residual=True)
    check(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU, rows=(6,))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_cpu_activations_of_extreme_values(builder: KernelBuilder, activation: str) -> None:
    """As PyTorch's: where they saturate, and of what is not finite."""
    check_extreme_values(builder, activation, "float32", CPU)


# Prints the polynomial that GELU on a GPU is made of; TileLang's modules need a process without TVM.
GELU = """
import json
from tkc.kernels.matmul import epilogue
print(json.dumps([epilogue.LOG2_NORMAL_TAIL, epilogue.NORMAL_TAIL_END]))
"""


def test_the_tail_of_gpu_gelu_is_as_near_as_it_says() -> None:
    """The logarithm within 4.8e-6 of the normal distribution's; past where it was fitted, it falls until zero."""
    printed = subprocess.run([sys.executable, "-c", GELU], capture_output=True, text=True, check=True).stdout
    polynomial, end = json.loads(printed)
    m = torch.linspace(0, end, 14_001, dtype=torch.float64)
    tail = reduce(lambda value, coefficient: value * m + coefficient, polynomial, torch.zeros_like(m))
    errors = tail - torch.special.log_ndtr(-m) / math.log(2)
    assert errors[m <= 5.5].abs().max() < 4.8e-6
    assert (tail[m >= 5.5].diff() < 0).all()
    assert tail[-1] < math.log2(torch.finfo(torch.float32).tiny)


@pytest.mark.parametrize(("layout", "outputs"), [("nk", (9, 2, 13)), ("kn", (96, 40, 24))])
def test_cpu_kernels_write_several_outputs(builder: KernelBuilder, layout: str, outputs: tuple[int, ...]) -> None:
    """Each output has the columns that are its own, with their part of the bias, wherever tiles end."""
    parameters = MatmulParameters(
        sum(outputs), 19, "float32", layout, bias=True, activation="silu", outputs=outputs, out_dtype="bfloat16"
    )
    check(builder, parameters, SPEC.configurations(parameters, CPU), CPU, rows=(1, 9))


def test_outputs_are_cut_from_one_product() -> None:
    """The reference's outputs, side by side, are the plain product."""
    parameters = MatmulParameters(6, 4, "float32", outputs=(3, 1, 2))
    a, b = torch.randn(2, 4), torch.randn(6, 4)
    parts = SPEC.reference(parameters, a, b)
    assert [part.shape for part in parts] == [(2, 3), (2, 1), (2, 2)]
    torch.testing.assert_close(torch.cat(parts, 1), a @ b.T)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 20), st.sampled_from(["nk", "kn"]))
def test_cpu_kernels_take_any_size(builder: KernelBuilder, n: int, k: int, m: int, layout: str) -> None:
    """Sizes below one tile or one vector register included."""
    parameters = MatmulParameters(n=n, k=k, dtype="float32", weight_layout=layout)
    check(builder, parameters, SPEC.configurations(parameters, CPU)[:1], CPU, rows=(m,))


def test_relu_keeps_nan(builder: KernelBuilder) -> None:
    """A NaN in the input stays one, as in PyTorch."""
    parameters = MatmulParameters(n=4, k=4, dtype="float32", activation="relu")
    kernel = default_kernel(builder, parameters, CPU)
    out = torch.zeros(1, 4)
    kernel(torch.full((1, 4), float("nan")), torch.ones(4, 4), out)
    assert out.isnan().all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str) -> None:
    """Each configuration's tiles fit into shared memory, and there are several to choose from, small ones included."""
    target = Target("cuda", arch)
    configurations = SPEC.configurations(MatmulParameters(4096, 4096, "bfloat16"), target)
    assert max(c.shared_memory() for c in configurations) <= target.shared_memory
    assert len(set(configurations)) == len(configurations) >= 6
    assert configurations[0].block_m >= 128 and min(c.block_m for c in configurations) == 16


def test_operands_that_tma_cannot_load_get_no_wgmma() -> None:
    """On Hopper, WGMMA is only for operands whose rows start at multiples of 16 bytes."""
    for k in (1001, 1004):  # rows that start at multiples of 2 and of 8 bytes
        assert all(c.block_m < 64 for c in SPEC.configurations(MatmulParameters(512, k, "bfloat16"), HOPPER))
    odd_n = MatmulParameters(1001, 512, "bfloat16", weight_layout="kn")
    assert all(c.block_m < 64 for c in SPEC.configurations(odd_n, HOPPER))
    assert SPEC.configurations(MatmulParameters(1001, 512, "bfloat16"), HOPPER)[0].block_m == 128


def test_support_and_benefit() -> None:
    """The CPU and tiny products are left to the graph compiler, each with a reason."""
    single, half = MatmulParameters(64, 64, "float32"), MatmulParameters(64, 64, "float16")
    assert SPEC.unsupported(single, CPU) is None and SPEC.unsupported(half, HOPPER) is None
    assert SPEC.beneficial(single, CPU) is not None and SPEC.beneficial(half, HOPPER) is None
    assert "n=4" in (SPEC.beneficial(MatmulParameters(4, 64, "float16"), HOPPER) or "")


@pytest.mark.parametrize(
    ("arch", "changes", "reason"),
    [
        ("sm_90a", {}, None),
        ("sm_90a", {"k": 62}, "rows of 62 elements of float32"),
        ("sm_90a", {"n": 66}, "rows of 66 elements of float32"),
        ("sm_90a", {"n": 68, "out_dtype": "bfloat16"}, "rows of 68 elements of bfloat16"),
        ("sm_90a", {"weight_layout": "kn", "outputs": (30, 34)}, "rows of 30 elements"),
        ("sm_90a", {"residual": True, "out_dtype": "bfloat16"}, "residual of bfloat16"),
        ("sm_80", {}, "sm_90a"),
        ("sm_120", {}, "sm_90a"),
    ],
)
def test_which_float32_products_a_gpu_has_a_kernel_for(arch: str, changes: dict[str, Any], reason: str | None) -> None:
    """Those whose operands and outputs tensor maps describe, on Hopper; what it takes fits there."""
    target, parameters = Target("cuda", arch), replace(MatmulParameters(64, 64, "float32"), **changes)
    found = SPEC.unsupported(parameters, target)
    assert found is None if reason is None else reason in (found or "")
    for layout in ("nk", "kn"):
        tilings = SPEC.configurations(MatmulParameters(512, 512, "float32", layout), HOPPER)
        assert {32, 128} <= {c.block_n for c in tilings} and {64, 128} == {c.block_m for c in tilings}
        assert min(c.stages for c in tilings) > 1
        assert all(shared_memory(c, layout, "float32") <= HOPPER.shared_memory for c in tilings)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outputs": (32, 16)}, "b has 64"),
        ({"outputs": (32, 16, 8, 4, 4)}, "at most 4"),
        ({"outputs": (32, 32), "residual": True}, "residual"),
    ],
)
def test_unsupported_outputs(changes: dict[str, Any], reason: str) -> None:
    """Outputs that the kernel cannot write are refused with the reason, on the CPU too."""
    assert reason in (SPEC.unsupported(MatmulParameters(64, 64, "bfloat16", **changes), HOPPER) or "")
    assert reason in (SPEC.unsupported(MatmulParameters(64, 64, "bfloat16", **changes), CPU) or "")


def test_several_outputs_have_the_tilings_of_one() -> None:
    """Tiles need not divide the outputs, but no tile is more than twice as wide as the widest of them."""
    merged = MatmulParameters(6144, 4096, "bfloat16", outputs=(4096, 1024, 1024))
    assert SPEC.configurations(merged, HOPPER) == SPEC.configurations(replace(merged, outputs=()), HOPPER)
    narrow = MatmulParameters(192, 4096, "bfloat16", outputs=(64, 64, 64))
    assert {c.block_n for c in SPEC.configurations(narrow, HOPPER)} == {112, 96, 80, 64, 48, 32}


def test_persistent_blocks_store_by_tma() -> None:
    """They are offered where the rows of every output start at multiples of 16 bytes."""
    for outputs, offered in (((1024, 512, 24), True), ((1024, 516, 20), False)):
        parameters = MatmulParameters(sum(outputs), 512, "bfloat16", outputs=outputs)
        assert any(c.blocks for c in SPEC.configurations(parameters, HOPPER)) == offered


@pytest.mark.parametrize(("out_dtype", "offered"), [(None, True), ("bfloat16", True), ("float16", False)])
def test_blocks_that_stay_add_a_residual_of_the_operands_dtype(out_dtype: Any, offered: bool) -> None:
    """It comes in slices that take the place of operands'."""
    parameters = MatmulParameters(512, 512, "bfloat16", out_dtype=out_dtype, residual=True)
    assert any(c.blocks for c in SPEC.configurations(parameters, HOPPER)) == offered


def test_work_counts_every_tensor() -> None:
    """FLOPs and bytes of a small product, counted by hand."""
    work = SPEC.work(MatmulParameters(8, 4, "bfloat16", bias=True, residual=True, out_dtype="float32"), {"m": 2})
    assert work.flops == 2 * 2 * 8 * 4
    assert work.bytes == 2 * (2 * 4 + 4 * 8 + 8) + 4 * (2 * 8 + 2 * 8)


@pytest.mark.parametrize("epilogue", [{}, {"bias": True, "activation": "gelu", "residual": True}])
def test_hopper_kernel_is_warp_specialized(epilogue: dict[str, Any]) -> None:
    """The default for sm_90a has warps that only load, by TMA, and others that multiply by WGMMA."""
    parameters = MatmulParameters(4096, 4096, "bfloat16", **epilogue)
    source = cuda_source(request_for(parameters, SPEC.configurations(parameters, HOPPER)[0], HOPPER))
    for instruction in (
        "tl::tma_load(a_desc",
        "tl::tma_load(b_desc",
        "64, 256, 16",
        "warpgroup_reg_dealloc",
        "tma_store",
    ):
        assert instruction in source, instruction
    # A residual is loaded by the same warps, slice by slice, into the left operand's place.
    slices = re.findall(r"tl::tma_load\(residual_desc, .*\)a_shared\)", source)
    assert len(slices) == (256 // 64 if parameters.residual else 0)


@pytest.mark.parametrize(
    ("tiling", "ahead"),
    [
        (Tiling(128, 256, 64, stages=4, threads=256, blocks=132), ("bias",)),
        (Tiling(128, 256, 64, stages=4, threads=256), ("bias",)),
        (Tiling(128, 128, 64, stages=6, threads=256), ("bias", "residual")),
        (Tiling(16, 64, 256, stages=4, threads=128), ("bias", "residual")),
    ],
)
def test_what_is_added_comes_while_products_run(tiling: Tiling, ahead: tuple[str, ...]) -> None:
    """A tile's bias, and a residual for which there are registers, are asked for before its products, not after."""
    parameters = MatmulParameters(1024, 512, "bfloat16", bias=True, residual=True)
    assert tiling in SPEC.configurations(parameters, HOPPER)
    source = cuda_source(request_for(parameters, tiling, HOPPER))
    body = source[source.index("{", source.index("__launch_bounds__")) :]
    products = [match.start() for match in re.finditer(r"tl::\w*mma\w*<", body)]
    for name in ahead:
        loads = [match.start() for match in re.finditer(rf"(?<!\w){name}(\[| \+)", body)]
        assert loads and max(loads) < max(products), name


@pytest.mark.parametrize(
    ("kernel", "parameters", "tiling", "parts"),
    [
        ("matmul", MatmulParameters(512, 512, "bfloat16"), Tiling(block_n=160, blocks=8), 4),
        ("matmul", MatmulParameters(512, 512, "bfloat16", residual=True), Tiling(block_n=192, blocks=8), 3),
        ("matmul.scaled", ScaledMatmulParameters(512, 512), ScaledTiling(block_n=64, blocks=8), 1),
    ],
)
def test_parts_of_tiles_take_turns(kernel: str, parameters: Any, tiling: Tiling, parts: int) -> None:
    """The part before, be it of the tile before, may still be leaving its buffer: no part takes that one's."""
    source = cuda_source(KernelRequest(kernel, parameters, tiling, HOPPER))
    assert tiling.block_n == parts * tiling.stored_columns()
    # What the copies from the buffers take as their address: (&(((type*)staged)[offset])).
    offsets = re.findall(r"\(&\(\(\(\w+\*\)staged\)\[(.+?)\]\)\)", source)
    assert source.count(f"tma_store_wait<{STORES_IN_FLIGHT - 1}") == len(offsets)
    formulas = [re.sub(r"\b(turn|part)_\d+\b", r"\1", offset) for offset in offsets]
    for own in (formulas[: len(formulas) // 2], formulas[len(formulas) // 2 :]):  # each warpgroup's
        assert len(own) in (1, parts)  # written once, in a loop, or part by part
        loop = range(parts // len(own))
        places = [eval(f, {"turn": turn, "part": part}) for turn in range(4) for part in loop for f in own]
        assert len(set(places)) == STORES_IN_FLIGHT
        assert all(place != before for before, place in pairwise(places)), own


PLACES = """
import json, sys
import tilelang
from tvm.tirx import IntImm
from tkc.kernels.matmul.columns import first_column, tiles_across
from tkc.kernels.matmul.parameters import MatmulParameters
for outputs, width in json.load(sys.stdin):
    p = MatmulParameters(sum(outputs), 64, "bfloat16", outputs=tuple(outputs))
    print([int(first_column(p, width, IntImm("int32", tile))) for tile in range(tiles_across(p, width))])
"""


def test_tiles_cover_each_output_once() -> None:
    """Every column is one tile's own; what a tile has beyond its output's end is not, and every tile has some."""
    cases = [((4096, 1024, 1024), 48), ((4096, 1024, 1024), 112), ((96, 40, 24), 48), ((7, 300, 1, 64), 64), ((9,), 4)]
    done = subprocess.run(
        [sys.executable, "-c", PLACES], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    for (outputs, width), line in zip(cases, done.stdout.splitlines(), strict=True):
        ends = list(accumulate(outputs))
        own = [range(begin, min(begin + width, *(e for e in ends if e > begin))) for begin in json.loads(line)]
        assert list(chain(*own)) == list(range(sum(outputs))), (outputs, width)


@pytest.mark.parametrize(("layout", "shares"), [("nk", 1), ("kn", 3)])
def test_float32_products_are_three_of_tf32(layout: str, shares: int) -> None:
    """Of each slice, by every warpgroup that multiplies; the right operand's parts have barriers of their own.

    All that a block has in shared memory is counted.
    """
    parameters = MatmulParameters(256, 128, "float32", layout, residual=True)
    tiling = next(c for c in SPEC.configurations(parameters, HOPPER) if c.shares == shares)
    source = cuda_source(request_for(parameters, tiling, HOPPER))
    warpgroups = tiling.threads // 128
    assert source.count("kTensorFloat32, tl::DataType::kTensorFloat32") == 3 * warpgroups
    assert source.count("].init(") == tiling.stages * 3 + (2 if shares > 1 else 0)
    assert f"__launch_bounds__({256 + tiling.threads}, 1)" in source
    name, begin = re.findall(r"void\* (\w+) = .*buf_dyn_shmem \+ (\d+)", source)[-1]
    end = int(begin) + tiling.staged_memory(4)
    assert name == "staged" and end <= shared_memory(tiling, layout, "float32") <= HOPPER.shared_memory


def test_warpgroups_share_the_depth_of_small_tiles() -> None:
    """Of 64 rows, which one multiplies, or of 128 by two."""
    shares = {Tiling(64, threads=384): 3, Tiling(64, threads=128): 1, Tiling(128): 1, Tiling(128, threads=512): 2}
    assert {tiling: tiling.shares for tiling in shares} == shares
    assert {tiling.warpgroup_rows for tiling in shares} == {64} and Tiling(256).warpgroup_rows == 128


def test_one_row_of_float32_is_left_to_generated_code_on_a_gpu() -> None:
    """What reads its weight once is no work for tensor cores."""
    single, half = MatmulParameters(64, 64, "float32"), MatmulParameters(64, 64, "float16")
    assert SPEC.least_beneficial_size(single, HOPPER) == 2
    assert SPEC.least_beneficial_size(single, CPU) == SPEC.least_beneficial_size(half, HOPPER) == 0


@pytest.mark.nvcc
def test_float32_kernels_compile(builder: KernelBuilder) -> None:
    """The narrowest tiles, whose depth warpgroups share, with all that can follow the sums."""
    parameters = MatmulParameters(768, 512, "float32", bias=True, activation="gelu", residual=True)
    request = request_for(parameters, SPEC.configurations(parameters, HOPPER)[-1], HOPPER)
    assert b"sm_90a" in builder.build([request])[request].path.read_bytes()


@pytest.mark.daily(4)
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("arch", "outputs"),
    [
        ("sm_80", ()),
        ("sm_80", (502, 200, 66)),
        ("sm_89", (512, 256)),
        ("sm_90a", ()),
        ("sm_90a", (512, 256)),
        ("sm_90a", (504, 200, 64)),
        ("sm_120", ()),
    ],
)
def test_cuda_kernels_compile(builder: KernelBuilder, arch: str, outputs: tuple[int, ...]) -> None:
    """The configuration with the most threads becomes machine code for the architecture, wherever outputs end."""
    target = Target("cuda", arch)
    parameters = MatmulParameters(768, 512, "float16", weight_layout="kn", bias=True, outputs=outputs)
    widest = max(SPEC.configurations(parameters, target), key=lambda configuration: configuration.threads)
    request = request_for(parameters, widest, target)
    assert arch.encode() in builder.build([request])[request].path.read_bytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [
        MatmulParameters(1024, 512, "bfloat16"),
        MatmulParameters(1000, 520, "float16", "kn", bias=True, activation="gelu", residual=True),
        MatmulParameters(264, 200, "bfloat16", "kn", activation="silu", out_dtype="float32"),
        MatmulParameters(96, 1024, "float16", bias=True, activation="gelu_tanh"),
        MatmulParameters(1001, 99, "bfloat16", activation="relu", residual=True),
        MatmulParameters(7, 64, "float16", "kn", bias=True),
        MatmulParameters(1524, 512, "bfloat16", bias=True, outputs=(1024, 256, 244)),
        MatmulParameters(384, 200, "float16", "kn", activation="gelu", outputs=(256, 128)),
        MatmulParameters(160, 512, "bfloat16", bias=True, activation="silu", outputs=(96, 40, 24)),
        MatmulParameters(1256, 256, "float16", bias=True, outputs=(1000, 200, 56)),
        MatmulParameters(162, 128, "bfloat16", "kn", bias=True, outputs=(100, 36, 26)),
        MatmulParameters(160, 99, "bfloat16", "kn", out_dtype="float32", outputs=(97, 36, 27)),
        MatmulParameters(1024, 512, "float32"),
        MatmulParameters(1000, 516, "float32", "kn", bias=True, activation="gelu", residual=True),
        MatmulParameters(264, 200, "float32", "kn", activation="silu", out_dtype="bfloat16"),
        MatmulParameters(100, 1028, "float32", bias=True, activation="gelu_tanh", residual=True),
        MatmulParameters(1256, 256, "float32", bias=True, activation="relu", outputs=(1000, 204, 52)),
    ],
    ids=str,
)
def test_gpu_kernels_agree_with_pytorch(builder: KernelBuilder, parameters: MatmulParameters) -> None:
    """Every configuration for this GPU, every epilogue part, and sizes that no tile divides."""
    target = gpu_target()
    check(builder, parameters, SPEC.configurations(parameters, target), target, ROWS)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("k", [16, 64, 1024, 16384])
@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_gpu_float32_products_err_no_more_than_cublas(
    builder: KernelBuilder, draw: Callable[..., torch.Tensor], k: int, layout: str
) -> None:
    """By the largest error, in units of the sum of the products' magnitudes; of numbers of both signs and of one, whose
    errors add up where they are rounded to one side."""
    target, parameters = gpu_target(), MatmulParameters(256, k, "float32", layout)
    if (reason := SPEC.unsupported(parameters, target)) is not None:
        pytest.skip(reason)
    kernel = default_kernel(builder, parameters, target)
    a, b = draw(512, k, device="cuda"), draw(256, k, device="cuda")
    out = torch.empty(512, 256, device="cuda")
    kernel(a, b if layout == "nk" else b.T.contiguous(), out)
    wanted, magnitude = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    error, cublas = (((x.double() - wanted).abs() / magnitude).max().item() for x in (out, a @ b.T))
    # Of few products, what the parts lack; of many, what hundreds of sums of 32 are rounded by, which cuBLAS may split.
    assert error <= max(cublas, 2**-21, 2**-23 * (k / 32) ** 0.5), f"{error:.1e}, cuBLAS {cublas:.1e}"


@pytest.mark.gpu
def test_gpu_float32_products_of_extreme_values(builder: KernelBuilder) -> None:
    """The largest numbers are not rounded up to infinity, and what is not a number stays so, in its row alone."""
    target, parameters = gpu_target(), MatmulParameters(64, 64, "float32")
    if (reason := SPEC.unsupported(parameters, target)) is not None:
        pytest.skip(reason)
    kernel = default_kernel(builder, parameters, target)
    a, b = torch.zeros(4, 64, device="cuda"), torch.randn(64, 64, device="cuda") / 4
    a[0, 3], a[1, 4], a[2, 5], a[3, 6] = torch.finfo().max, -torch.finfo().max, 1e-30, torch.nan
    out = torch.empty(4, 64, device="cuda")
    kernel(a, b, out)
    torch.testing.assert_close(out[:3], (a.double() @ b.double().T).float()[:3], rtol=1e-5, atol=0)
    assert out[3].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_gpu_activations_of_extreme_values(builder: KernelBuilder, activation: str, dtype: str) -> None:
    """The hardware's exponential and division, and a GELU without ``erff``, end where PyTorch's functions do; float32
    operands get exact ones."""
    check_extreme_values(builder, activation, dtype, gpu_target())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [
        MatmulParameters(3064, 64, "bfloat16"),
        MatmulParameters(3072, 72, "float16", "kn", bias=True, activation="gelu", residual=True),
        MatmulParameters(3072, 64, "bfloat16", outputs=(2048, 512, 512)),
        MatmulParameters(3064, 64, "float32"),
        MatmulParameters(3072, 36, "float32", "kn", bias=True, activation="gelu", residual=True),
    ],
    ids=str,
)
def test_gpu_blocks_compute_tiles_by_turns(builder: KernelBuilder, parameters: MatmulParameters) -> None:
    """Several shallow tiles for each block, so that one's stores are still on their way when the next one's begin."""
    target = gpu_target()
    lasting = tuple(c for c in SPEC.configurations(parameters, target) if c.blocks)
    if not lasting:
        pytest.skip(f"no blocks that stay are offered on {target}")
    item_bytes = ITEM_BYTES[parameters.stored_dtype]
    assert {c.block_n // c.stored_columns(item_bytes) % STORES_IN_FLIGHT for c in lasting} == {0, 1}
    check(builder, parameters, lasting, target, (8193,))
