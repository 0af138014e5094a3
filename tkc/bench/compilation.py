"""How long compiling a deep model takes, cold and warm, and how much memory it needs over its weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from tkc.measure.record import Row

_PROGRAM = """
import json, resource, sys, time
import torch
from tkc.bench.models import MODELS
from tkc.api import compile
layers, target = int(sys.argv[1]), sys.argv[2]
case = MODELS["llama-3-8b"](layers, torch.device("cpu"), torch.bfloat16)
weights = sum(p.nbytes for p in case.model.parameters())

start = time.perf_counter()
executable = compile(case.model, (), case.kwargs, target=target, dynamic_shapes=case.dynamic_shapes)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
stages = {stage.name: stage.seconds for stage in executable.report.stages}
result = {"seconds": seconds, "weights": weights, "peak": peak, "kernels": len(executable.libraries), "stages": stages}
print(json.dumps(result))
"""


def bench_compilation(layers: int, target: str) -> list[Row]:
    """Compile ``layers`` Llama-3-8B-shaped layers in fresh processes, first with an empty kernel cache, then with a
    full one.

    ``peak over weights`` is the largest resident size of the compiling process over the bytes of the weights. Builder
    processes are not in it: Linux counts a child's memory before it starts its program as the parent's.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="tkc-bench-") as cache:
        for state in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, str(layers), target],
                env={**os.environ, "TKC_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(done.stderr[-3000:])
            result = json.loads(done.stdout.splitlines()[-1])
            notes = {"peak over weights": result["peak"] / result["weights"], "kernels": float(result["kernels"])}
            notes |= {f"{name} s": seconds for name, seconds in result["stages"].items()}
            rows.append(
                Row(f"compile {layers} layers for {target}, {state}", {"tkc": result["seconds"] * 1e3}, notes=notes)
            )
    return rows


def bench_call_overhead(device: torch.device) -> list[Row]:
    """The host time of calling a model that does next to nothing: one addition of two numbers."""

    from tkc.api import compile

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    x, y = torch.randn(2, device=device), torch.randn(2, device=device)
    executable = compile(Add().eval(), (x, y), target="cuda" if device.type == "cuda" else "cpu")
    executable(x, y)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            executable(x, y)
        best = min(best, (time.perf_counter() - start) / 500)
        if device.type == "cuda":
            torch.cuda.synchronize()
    return [Row("one call of an addition, host time", {"tkc": best * 1e3})]
