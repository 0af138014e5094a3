"""Kernels that may begin while the one before them ends: what is generated for them, in a process with TileLang."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GENERATED = """
import json, tempfile
from pathlib import Path
from tkc.builder import compile_kernel as builder
from tkc.kernels import KernelRequest, Target
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.spec import DecodeConfiguration

sources = []
builder.compile_cuda = lambda source, *_: sources.append(source) or b""
builder.compile_host_code = lambda *_: None
found = {}
for arch in ("sm_80", "sm_90a"):
    parameters = AttentionParameters(4, 2, 64, 64, "bfloat16", 0.125)
    request = KernelRequest("attention.decode", parameters, DecodeConfiguration(64, 4, 128), Target("cuda", arch))
    with tempfile.TemporaryDirectory() as folder:
        builder.compile_kernel(request, Path(folder))
        (table,) = Path(folder).glob("*.cc")
        found[arch] = sources.pop(), table.read_text()
print(json.dumps(found))
"""


@pytest.mark.daily(1)
@pytest.mark.nvcc
def test_kernels_wait_before_they_read_and_are_launched_early_where_the_gpu_can() -> None:
    """On Hopper decoding's two kernels each wait once, before any of their own work, and are marked for the launcher;
    on an older GPU they do neither.
    """
    run = subprocess.run([sys.executable, "-c", GENERATED], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    older, older_table = found["sm_80"]
    assert "cudaGridDependencySynchronize" not in older and "ProgrammaticDependentLaunch" not in older_table
    source, table = found["sm_90a"]
    bodies = source.split("__launch_bounds__")[1:]
    assert len(bodies) == 2 and table.count("Launch::kProgrammaticDependentLaunch") == 2
    for body in bodies:
        before, waits, after = body.partition("cudaGridDependencySynchronize();")
        names = [name for name in ("q[", "k[", "v[", "partial_out[", "partial_max[") if name in before]
        assert waits and not names, f"{names} before the wait in {body[:600]}"
        assert "cudaGridDependencySynchronize" not in after
