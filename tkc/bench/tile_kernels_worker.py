"""Measures functions of DeepSeek's TileKernels for ``tkc bench kernels``; a script for an environment that has them.

That environment has no tkc. ``tile_kernels_client.py`` starts the script and writes one request a line, a JSON object::

    {"function": "moe.topk_gate",       # of tile_kernels
     "inputs": FILE, "outputs": FILE,   # lists of tensors as torch.save writes them: its first arguments, its results
     "arguments": {"num_topk": 8},      # the others, by name
     "copies": 4,                       # of the inputs, to take turns with
     "device": "cuda"}

Each is answered by a line: ``{"milliseconds": …, "spread": …}``, or ``{"error": …}``, after which the process ends,
because a failed kernel may have left the device unusable. The first line says ``{"versions": …, "gpu": …}``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from functools import partial, reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no reply
    os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
    import tile_kernels

    timing = _timing()
    versions = {name: _version(name) for name in ("tile_kernels", "tilelang", "torch")}
    print(json.dumps({"versions": versions, "gpu": torch.cuda.is_available()}), file=replies)
    for line in sys.stdin:
        try:
            reply = _measured(tile_kernels, timing, json.loads(line))
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {_told(error)}"}), file=replies)
            raise
        print(json.dumps(reply), file=replies)


def _measured(package: Any, timing: Any, request: dict[str, Any]) -> dict[str, float]:
    device = torch.device(request["device"])
    function = reduce(getattr, request["function"].split("."), package)
    inputs = torch.load(request["inputs"], map_location=device, weights_only=True)
    copies = [inputs, *([tensor.clone() for tensor in inputs] for _ in range(request["copies"] - 1))]
    results: list[Any] = [None] * len(copies)  # kept, so that each copy's calls write to memory of their own

    def call(copy: int) -> None:
        results[copy] = function(*copies[copy], **request["arguments"])

    found = timing.kernel_timings({"": [partial(call, copy) for copy in range(len(copies))]}, device)[""]
    # Those of the last call that was recorded, which replays alone have written: what was timed is what is compared.
    first = results[0] if isinstance(results[0], tuple) else (results[0],)
    torch.save([result.cpu() for result in first if torch.is_tensor(result)], request["outputs"])
    return {"milliseconds": found.milliseconds, "spread": found.spread}


def _timing() -> ModuleType:
    """tkc's own way to measure; this process has no tkc to import it from."""
    spec = importlib.util.spec_from_file_location("tkc_timing", Path(__file__).parents[1] / "measure" / "timing.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its data classes look for their annotations
    spec.loader.exec_module(module)
    return module


def _told(error: Exception) -> str:
    """The line of a message that says what is wrong: where kernels do not compile, their source comes first."""
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if "error: " in line.lower()), lines[0])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
