"""The product of scaled FP8 operands: its kernels against PyTorch, and the choices its spec makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.built_kernel import build, build_for, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledTiling
from tkc.kernels.swiglu.parameters import SwiGLUParameters

SPEC = SPECS["matmul.scaled"]
HOPPER = Target.parse("cuda:sm_90a")
CASES = {
    "whole-blocks": ScaledMatmulParameters(256, 384),
    "ragged": ScaledMatmulParameters(200, 304, "float32"),
    "half": ScaledMatmulParameters(136, 128, "float16"),
    "less-than-a-block": ScaledMatmulParameters(24, 80, "float32"),
}
ROWS = (0, 1, 33)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
TENSOR_CORES = 1e-3  # their sums of FP8 products keep about 14 bits


def inputs_for(parameters: ScaledMatmulParameters, m: int, device: str = "cpu") -> list[torch.Tensor]:
    """Random FP8 numbers, and scales that differ by up to a factor of eight."""
    generator = torch.Generator().manual_seed(m)
    tensors = []
    for tensor in SPEC.inputs(parameters):
        shape = [m if dim == "m" else dim for dim in tensor.shape]
        values = torch.randn(shape, generator=generator)
        values = values.sigmoid() * 7 + 1 if tensor.dtype == "float32" else values
        tensors.append(values.to(device, getattr(torch, tensor.dtype)))
    return tensors


def assert_agrees(parameters: ScaledMatmulParameters, inputs: list[torch.Tensor], out: torch.Tensor) -> None:
    """Equal to what the output's dtype, and a GPU's sums, round."""
    (expected,) = SPEC.reference(parameters, *inputs)
    largest = expected.float().abs().max().item() if expected.numel() else 0.0
    tolerance = max(TOLERANCE[parameters.out_dtype], TENSOR_CORES if out.is_cuda else 0.0)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", ["whole-blocks", "ragged", "less-than-a-block"])
def test_agrees_with_the_reference(builder: KernelBuilder, case: str) -> None:
    """One build serves every number of rows, and last blocks that are not whole."""
    parameters = CASES[case]
    kernel = build_for(builder, SPEC.name, parameters)
    for m in ROWS:
        inputs = inputs_for(parameters, m)
        assert_agrees(parameters, inputs, *kernel(*inputs))


def test_reads_every_fp8_number(builder: KernelBuilder) -> None:
    """Times one, each of the 256 codes is what PyTorch reads it as, NaN and both zeros included."""
    parameters = ScaledMatmulParameters(1, 1, "float32")
    codes = torch.arange(256, dtype=torch.uint8)[:, None].view(torch.float8_e4m3fn)
    one = torch.ones(1, 1)
    (out,) = build_for(builder, SPEC.name, parameters)(codes, one.to(codes.dtype), torch.ones(256, 1), one)
    torch.testing.assert_close(out, codes.float(), rtol=0, atol=0, equal_nan=True)


def test_takes_what_quantized_swiglu_makes() -> None:
    """SwiGLU's outputs are this product's inputs as they lie: dtype, shape and layout."""
    for channels in (2048, 200):
        made = SPECS["swiglu"].outputs(SwiGLUParameters(channels, "bfloat16", scale="group"))
        a, _, a_scale, _ = SPEC.inputs(ScaledMatmulParameters(256, channels))
        assert [(t.shape[1:], t.dtype) for t in made] == [(t.shape[1:], t.dtype) for t in (a, a_scale)]


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str) -> None:
    """Slices are one group deep, fit into shared memory, and serve many rows as well as few."""
    target = Target.parse(f"cuda:{arch}")
    configurations = SPEC.configurations(ScaledMatmulParameters(4096, 4096), target)
    assert len(set(configurations)) == len(configurations) >= 5
    assert configurations[0].block_m >= 128 and min(c.block_m for c in configurations) == 16
    for c in configurations:
        assert c.block_k == QUANTIZATION_BLOCK
        assert c.stages * (c.block_m + c.block_n) * c.block_k < c.shared_memory() <= target.shared_memory


def test_support_and_benefit() -> None:
    """What has no kernel, or none that pays, is refused with the reason."""
    whole, ragged = ScaledMatmulParameters(256, 512), ScaledMatmulParameters(256, 500)
    assert "sm_80 do not multiply FP8" in (SPEC.unsupported(whole, Target.parse("cuda:sm_80")) or "")
    assert "k=500" in (SPEC.unsupported(ragged, HOPPER) or "")
    assert SPEC.unsupported(whole, HOPPER) is None and SPEC.unsupported(ragged, Target.parse("cpu")) is None
    assert SPEC.beneficial(whole, HOPPER) is None and SPEC.beneficial(whole, Target.parse("cpu")) is not None
    assert "n=4" in (SPEC.beneficial(ScaledMatmulParameters(4, 512), HOPPER) or "")


def test_work_counts_every_tensor() -> None:
    """FLOPs and bytes of a small product, counted by hand."""
    work = SPEC.work(ScaledMatmulParameters(130, 200), {"m": 3})
    assert work.flops == 2 * 3 * 130 * 200
    assert work.bytes == 3 * 200 + 130 * 200 + 4 * (3 * 2 + 2 * 2) + 2 * 3 * 130


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("case", "configuration", "arch"),
    [
        ("ragged", ScaledTiling(16, 64, stages=4, threads=128), "sm_89"),
        ("half", ScaledTiling(128, 128, stages=2, threads=256), "sm_120"),
        ("ragged", ScaledTiling(128, 192, stages=4, threads=256), "sm_90a"),
        ("whole-blocks", ScaledTiling(128, 128, stages=4, threads=256, blocks=132), "sm_90a"),
    ],
)
@pytest.mark.daily(2)
def test_compiles_for_cuda(builder: KernelBuilder, case: str, configuration: ScaledTiling, arch: str) -> None:
    """Large and small tiles, by WGMMA and by mma.sync, of blocks that stay or not, with no GPU needed."""
    request = KernelRequest(SPEC.name, CASES[case], configuration, Target.parse(f"cuda:{arch}"))
    assert arch.encode() in builder.build([request])[request].path.read_bytes()


@pytest.mark.parametrize(
    ("n", "out_dtype", "stays"), [(512, "float16", True), (512, "float32", False), (516, "float16", False)]
)
def test_blocks_that_stay_store_narrow_aligned_outputs(n: int, out_dtype: Any, stays: bool) -> None:
    """Beside the slices there is no memory for float32, and tensor maps want rows of whole 16 bytes."""
    offered = SPEC.configurations(ScaledMatmulParameters(n, 512, out_dtype), HOPPER)
    assert any(c.blocks for c in offered) == stays


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [*CASES.values(), ScaledMatmulParameters(1001, 528), ScaledMatmulParameters(1024, 4096, "float32")],
    ids=str,
)
def test_agrees_on_the_gpu_in_every_configuration(builder: KernelBuilder, parameters: ScaledMatmulParameters) -> None:
    """Whatever the tile, with rows and columns that it does not divide."""
    for kernel in build(builder, gpu_requests(SPEC.name, parameters)):
        for m in (*ROWS[1:], 1025):
            inputs = inputs_for(parameters, m, "cuda")
            assert_agrees(parameters, inputs, *kernel(*inputs))
