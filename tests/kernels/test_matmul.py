"""The matrix product with epilogue: its kernels against PyTorch, and the choices its spec makes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import reduce

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.matmul_checks import CPU, SPEC, check, check_extreme_values, default_kernel
from tkc.builder import KernelBuilder
from tkc.kernels.matmul.parameters import MatmulParameters


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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


@pytest.mark.daily(1)
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
