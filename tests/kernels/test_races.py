"""Products have the same bits each time: what loads, what multiplies and what stores wait for each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.built_kernel import build, gpu_requests
from tkc.builder import KernelBuilder
from tkc.kernels.cases import Case
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.measure.prepared_case import Prepared

RUNS = 40
PRODUCTS = (
    ("matmul", MatmulParameters(2048, 768, "bfloat16")),
    ("matmul", MatmulParameters(2048, 768, "bfloat16", bias=True, activation="gelu", residual=True)),
    ("matmul", MatmulParameters(2048, 768, "float32", residual=True)),
    ("matmul", MatmulParameters(2048, 768, "float32", "kn")),
    ("matmul.gated", GatedMatmulParameters(768, 768, "bfloat16")),
    ("matmul.grouped", GroupedMatmulParameters(128, 2048, 768, "bfloat16")),
    ("matmul.scaled", ScaledMatmulParameters(2048, 768, "bfloat16")),
)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "parameters"), PRODUCTS, ids=str)
def test_every_run_of_every_configuration_agrees(builder: KernelBuilder, name: str, parameters: Any) -> None:
    """Over so many tiles of so few slices that memory changes hands millions of times."""
    case = Case(name, parameters, {"m": 32768})
    prepared = Prepared(case, torch.device("cuda"))
    for kernel in build(builder, gpu_requests(name, parameters)):
        (first,) = kernel(*prepared.inputs)
        differing = sum(not torch.equal(kernel(*prepared.inputs)[0], first) for _ in range(RUNS))
        assert not differing, f"{kernel.request.configuration}: {differing} of {RUNS} runs differ from the first"
