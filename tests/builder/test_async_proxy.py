"""What threads read before they say that memory may be written again: in a process with TileLang."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GENERATED = """
import json, sys
from tilelang import tvm
from tilelang.backend.module import create_backend_context
from tilelang.engine.lower import device_codegen_without_compile, lower_to_host_device_ir
from tkc.builder.async_proxy import fenced_arrivals
from tkc.kernels import Target
from tkc.kernels.gated_matmul.definition import define as define_gated
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.matmul.definition import define
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling

hopper = Target.parse("cuda:sm_90a")
few, many = Tiling(16, 64, 128, stages=4, threads=128), Tiling(128, 128, 64, stages=4, threads=256)
functions = {
    "few rows": define(MatmulParameters(256, 512, "bfloat16"), few, hopper),
    "few rows, gated": define_gated(GatedMatmulParameters(256, 512, "bfloat16"), few, hopper),
    "many rows": define(MatmulParameters(256, 512, "bfloat16"), many, hopper),
}
target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
sources = {}
with target:
    context = create_backend_context(target, None, "auto")
    for name, function in functions.items():
        _, module, *_ = lower_to_host_device_ir(function.with_attr("global_symbol", "f"), context)
        (variable, device_function), = module.functions.items()
        fenced = tvm.IRModule({variable: fenced_arrivals(fenced_arrivals(device_function))}, attrs=module.attrs)
        sources[name] = device_codegen_without_compile(fenced, context).inspect_source()
print(json.dumps(sources), file=sys.stdout)
"""


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The CUDA of three products, each treated twice."""
    run = subprocess.run([sys.executable, "-c", GENERATED], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["few rows", "few rows, gated"])
def test_reads_by_threads_end_before_memory_is_given_back(sources: dict[str, str], name: str) -> None:
    """One fence after each read: between the last load of a matrix and the arrival that follows."""
    lines = [line.strip() for line in sources[name].splitlines()]
    loads = [i for i, line in enumerate(lines) if "ptx_ldmatrix" in line]
    arrivals = [i for i, line in enumerate(lines) if line.endswith(".arrive();")]
    assert loads and arrivals
    for arrival in arrivals:
        before = [i for i in loads if i < arrival]
        between = lines[before[-1] : arrival] if before else []
        assert not before or between.count("tl::fence_proxy_async();") == 1, lines[arrival - 3 : arrival + 1]


@pytest.mark.nvcc
def test_products_that_are_waited_for_need_no_fence(sources: dict[str, str]) -> None:
    """Hopper's tensor cores read as the copy engine writes; the only fence is that before the output is stored."""
    source = sources["many rows"]
    assert ".arrive();" in source and "ptx_ldmatrix" not in source
    before_the_last_arrival = source[: source.rindex(".arrive();")]
    assert "fence_proxy_async" not in before_the_last_arrival
