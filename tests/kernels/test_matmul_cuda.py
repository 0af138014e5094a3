"""The matmul kernels' CUDA code: its structure, that it compiles, and on a GPU what it computes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
import torch

from tests.kernels.built_kernel import gpu_target
from tests.kernels.cuda_source import cuda_source
from tests.kernels.matmul_checks import HOPPER, SPEC, check, check_extreme_values, default_kernel, request_for, tilings
from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.matmul.float32_tilings import shared_memory
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import ITEM_BYTES, STORES_IN_FLIGHT, Tiling
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledTiling

ROWS = (1, 17, 127, 128, 4097)


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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
    widest = max(tilings(parameters, target), key=lambda configuration: configuration.threads)
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
    lasting = tuple(c for c in tilings(parameters, target) if c.blocks)
    if not lasting:
        pytest.skip(f"no blocks that stay are offered on {target}")
    item_bytes = ITEM_BYTES[parameters.stored_dtype]
    assert {c.block_n // c.stored_columns(item_bytes) % STORES_IN_FLIGHT for c in lasting} == {0, 1}
    check(builder, parameters, lasting, target, (8193,))
