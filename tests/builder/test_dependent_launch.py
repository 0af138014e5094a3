"""Kernels that may begin while the one before them ends: what is generated for them, in a process with TileLang."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GENERATED = """
import json, sys
from pathlib import Path
from tilelang import tvm
from tilelang.engine.lower import lower
from tkc.builder.dependent_launch import awaiting_previous_kernel
from tkc.builder.launcher import described
from tkc.kernels import Target
from tkc.kernels.attention.decode import define
from tkc.kernels.attention.spec import AttentionParameters, DecodeConfiguration

parameters = AttentionParameters(4, 2, 64, 64, "bfloat16", 0.125)
target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
function = define(parameters, DecodeConfiguration(64, 4, 128), Target.parse("cuda:sm_90a"))
with target:
    found = [lower(f, target=target, enable_host_codegen=True) for f in (function, awaiting_previous_kernel(function))]
print(json.dumps([(a.kernel_source, described(a.device_mod, Path("cubin"))) for a in found]), file=sys.stdout)
"""


@pytest.mark.nvcc
def test_every_kernel_waits_before_it_reads_and_is_launched_early() -> None:
    """Decoding's two kernels each wait once, before any of their own work, and are marked for the launcher."""
    run = subprocess.run([sys.executable, "-c", GENERATED], capture_output=True, text=True, check=True)
    plain, waiting = json.loads(run.stdout.splitlines()[-1])
    assert "cudaGridDependencySynchronize" not in plain[0] and "ProgrammaticDependentLaunch" not in plain[1]
    source, table = waiting
    bodies = source.split("__launch_bounds__")[1:]
    assert len(bodies) == 2 and table.count("Launch::kProgrammaticDependentLaunch") == 2
    for body in bodies:
        before, found, _ = body.partition("cudaGridDependencySynchronize();")
        names = [name for name in ("q[", "k[", "v[", "partial_out[", "partial_max[") if name in before]
        assert found and not names, f"{names} before the wait in {body[:600]}"


BUILT = """
import json, tempfile
from pathlib import Path
from tkc.builder import compile_kernel as builder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.attention.spec import AttentionParameters, DecodeConfiguration

builder.compile_host_code = lambda *_: None
found = {}
for arch in ("sm_80", "sm_90a"):
    configuration = DecodeConfiguration(64, 4, 128)
    parameters = AttentionParameters(4, 2, 64, 64, "bfloat16", 0.125)
    request = KernelRequest("attention.decode", parameters, configuration, Target("cuda", arch))
    with tempfile.TemporaryDirectory() as folder:
        builder.compile_kernel(request, Path(folder))
        (table,) = Path(folder).glob("*.cc")
        found[arch] = table.read_text().count("Launch::kProgrammaticDependentLaunch")
print(json.dumps(found))
"""


@pytest.mark.nvcc
def test_builders_make_kernels_wait_where_the_gpu_can_launch_early() -> None:
    """Both of decoding's kernels on Hopper, none on an older GPU."""
    run = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout.splitlines()[-1]) == {"sm_80": 0, "sm_90a": 2}
