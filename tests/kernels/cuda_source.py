"""The CUDA code of kernels, generated without a GPU or a compiler by one process that has loaded TileLang."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tkc.kernels import KernelRequest

# Answers go to what was the standard output, where TileLang also writes.
_PROGRAM = """
import json, math, os, sys, traceback
from importlib import import_module
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from tilelang import tvm
from tkc.builder.compile_kernel import lower_cuda
from tkc.kernels import KernelRequest

def box_of(node):  # descriptor, type, rank, address, then of each axis: extent, stride (from the item's size on), box
    name = getattr(node.args[0], "value", "") if isinstance(node, tvm.tirx.Call) and node.args else ""
    if name not in (ENCODE, ENCODE_WINDOWS):
        return {}
    rank = int(node.args[3])
    box = 5 + 2 * rank
    if name == ENCODE_WINDOWS:  # each axis' step, two corners of each of pixels, then a load's pixels and channels
        box += rank + 2 * (rank - 2)
    sizes = [int(extent) for extent in node.args[box : box + (2 if name == ENCODE_WINDOWS else rank)]]
    return {node.args[1].name: math.prod(sizes) * int(node.args[5 + rank])}

def heights_of(node, tags):  # of grids on their second and third axes, at sizes of 2**24
    if not isinstance(node, tvm.tirx.Call) or not node.args or getattr(node.args[0], "value", "") not in tags:
        return []
    own = tags[node.args[0].value]
    extents = zip(own, node.args[len(node.args) - len(own) :])
    return [number(extent) for tag, extent in extents if tag in ("blockIdx.y", "blockIdx.z")]

def number(extent):
    while getattr(getattr(extent, "op", None), "name", "") == "tirx.reinterpret" or isinstance(extent, tvm.tirx.Cast):
        extent = extent.args[0] if isinstance(extent, tvm.tirx.Call) else extent.value
    large = {var: tvm.tirx.const(2**24, var.dtype) for var in tvm.tirx.analysis.undefined_vars(extent)}
    return int(tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(extent, large)))

ENCODE, ENCODE_WINDOWS = "__tvm_tensormap_create_tiled", "__tvm_tensormap_create_im2col"
for line in sys.stdin:
    request = KernelRequest.from_json(json.loads(line))
    try:
        define = import_module(request.spec.definition_module).define
        function = define(request.parameters, request.configuration, request.target)
        lowered = lower_cuda(function.with_attr("global_symbol", request.symbol), request)
        launched = [f.attrs for f in lowered.device_module.functions.values()]
        tags = {attrs["global_symbol"]: list(attrs["tirx.kernel_launch_params"]) for attrs in launched}
        boxes, heights, calls = {}, [], []
        for host_function in lowered.host_module.functions.values():
            tvm.tirx.stmt_functor.post_order_visit(host_function.body, calls.append)
        for node in calls:
            boxes.update(box_of(node))
            heights += heights_of(node, tags)
        answer = {"source": lowered.source, "boxes": boxes, "heights": heights}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


def start() -> subprocess.Popen[str]:
    """A process that reads requests as JSON, one a line, and answers each with a line of JSON."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(process.kill)
    return process


def ask(process: subprocess.Popen[str], request: KernelRequest) -> dict[str, Any]:
    """What the process answers: a :class:`CudaCode`'s members, or an ``error``."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request.to_json()) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, f"the process that generates code ended with {process.wait()}"
    answer: dict[str, Any] = json.loads(line)
    return answer


@functools.cache
def _process() -> subprocess.Popen[str]:
    return start()


@dataclass(frozen=True)
class CudaCode:
    """The CUDA code of a kernel as it is built.

    ``boxes`` are the bytes that each bulk copy's descriptor copies, ``heights`` the blocks of its grids on their second
    and third axes where every size is 2**24.
    """

    source: str
    boxes: dict[str, int]
    heights: tuple[int, ...]


@functools.cache
def cuda_code(request: KernelRequest) -> CudaCode:
    """Of a kernel; :class:`AssertionError` with what TileLang said if there is none."""
    answer = ask(_process(), request)
    assert "source" in answer, answer["error"]
    return CudaCode(answer["source"], answer["boxes"], tuple(answer["heights"]))


def cuda_source(request: KernelRequest) -> str:
    """The CUDA code of a kernel as it is built."""
    return cuda_code(request).source
