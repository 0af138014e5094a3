"""The CUDA code of kernels, generated without a GPU or a compiler by one process that has loaded TileLang."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys

from tkc.kernels import KernelRequest

# Answers go to what was the standard output, where TileLang also writes.
_PROGRAM = """
import json, os, sys, traceback
from importlib import import_module
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import tilelang
from tvm.target import Target
from tkc.kernels import KernelRequest
for line in sys.stdin:
    request = KernelRequest.from_json(json.loads(line))
    target = Target({"kind": "cuda", "arch": request.target.arch})
    try:
        with target:
            define = import_module(request.spec.definition_module).define
            function = define(request.parameters, request.configuration, request.target)
            answer = {"source": tilelang.lower(function, target=target).kernel_source}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


@functools.cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(process.kill)
    return process


def cuda_source(request: KernelRequest) -> str:
    """The CUDA code of a kernel; :class:`AssertionError` with what TileLang said if there is none."""
    process = _process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request.to_json()) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, f"the process that generates code ended with {process.wait()}"
    answer = json.loads(line)
    assert "source" in answer, answer["error"]
    return answer["source"]
