"""``python -m tests.kernels.sanitize``: compute-sanitizer over one configuration of each kind of every kernel family.

Needs a GPU. Each case runs in a process of its own under ``compute-sanitizer --tool memcheck`` (``--tool`` chooses
another), on tensors that are allocations of their own, so that a byte beyond one is a byte that nobody has. Sizes are
those beside tiles, and nothing at all. ``--canaries`` runs the same without the sanitizer, between guards of known
content: for tools that cannot follow an instruction, and machines that have none.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_FAULTY = 86  # what the sanitizer exits with where it has found something
_COMMAND = ("--error-exitcode", str(_FAULTY), "--print-limit", "20", "--require-cuda-init", "no")
# Tensors of their own from the driver, and no blocks of PyTorch's pool, which would hide what lies between them.
_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def main() -> int:
    """1 if anything was found, or could not be looked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.sanitize", description=__doc__)
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--canaries", action="store_true", help="guards around every buffer instead of the sanitizer")
    parser.add_argument("--only", default="", help="a part of the cases' names")
    parser.add_argument("--seconds", type=float, default=900.0, help="of a case, after which it is ended")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # run this one here
    options = parser.parse_args()
    from tests.kernels.extremes import CASES

    if options.case is not None:
        return _run(options.case, options.canaries)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not options.canaries and not Path(sanitizer).exists():
        sys.exit("compute-sanitizer is not installed here: it comes with the CUDA toolkit; or use --canaries")
    names = [name for name in CASES if options.only in name]
    kinds = _build(names)
    failed = 0
    print(f"{'case':34} {'kinds':>5}  {options.tool if not options.canaries else 'canaries'}", flush=True)
    for name in names:
        if kinds[name]:
            verdict = _verdict(name, options, sanitizer)
            failed += verdict != "clean"
        else:
            verdict = "no kernel on this GPU"
        print(f"{name:34} {kinds[name]:5}  {verdict}", flush=True)
    return 1 if failed else 0


def _build(names: list[str]) -> dict[str, int]:
    """All kernels side by side, outside of the sanitizer: how many each case has."""
    from tests.kernels.built_kernel import build, gpu_target
    from tests.kernels.extremes import CASES, requests
    from tkc.builder import KernelBuilder

    wanted = {name: requests(CASES[name], gpu_target()) for name in names}
    with KernelBuilder() as builder:
        build(builder, [request for each in wanted.values() for request in each])
    return {name: len(each) for name, each in wanted.items()}


def _verdict(name: str, options: argparse.Namespace, sanitizer: str) -> str:
    own = [sys.executable, "-m", "tests.kernels.sanitize", "--case", name]
    command = [*own, "--canaries"] if options.canaries else [sanitizer, "--tool", options.tool, *_COMMAND, *own]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.seconds, env={**os.environ, **_ENVIRONMENT}
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {options.seconds:.0f} s"
    if done.returncode == 0:
        return "clean"
    output = done.stdout + done.stderr
    log = Path(f"sanitize-{re.sub('[^a-z0-9]+', '-', name)}.log")
    log.write_text(output)
    found = re.findall(r"={9} (?!COMPUTE|ERROR SUMMARY)(\S.*)", output)
    errors = [line for line in output.splitlines() if "Error" in line]
    return f"{found[0] if found else (errors or ['failed'])[-1]} (exit code {done.returncode}; see {log})"


def _run(name: str, canaries: bool) -> int:
    """Call each kind's kernel at some sizes; results are compared, too."""
    import torch

    from tests.kernels.built_kernel import build, gpu_target
    from tests.kernels.extremes import CASES, assert_same, call, inputs_of, requests
    from tkc.builder import KernelBuilder

    case = CASES[name]
    chosen = [case.usual, *case.sizes[1:-1:3], case.sizes[-1]]
    with KernelBuilder() as builder:
        kernels = build(builder, requests(case, gpu_target()))
    for kernel in kernels:
        for sizes in chosen:
            about = f"{kernel.request.configuration} at {dict(sizes)}"
            inputs = inputs_of(case, sizes, "cuda")
            expected = kernel.request.spec.reference(case.parameters, *inputs)
            if canaries:
                outputs = call(kernel, inputs, sizes)
            else:
                known = {**sizes, "token_blocks": -(-sizes.get("tokens", 0) // 128)}
                outputs = list(kernel(*(tensor.clone() for tensor in inputs), **known))
            torch.cuda.synchronize()
            assert_same(outputs, expected, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
