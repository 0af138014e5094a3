"""``python -m tests.kernels.generated_cuda save|compare FOLDER``: whether a change leaves generated CUDA as it was.

``save`` writes the CUDA of every kernel for Hopper into the folder; ``compare`` generates it again, and prints what
differs. Neither needs a GPU or nvcc. Kernels are those of the benchmarks and of kernel tuning, those of the tests of
synchronization, and :data:`VARIANTS`, each in all of its configurations. ``compare`` exits with 1 if
any differs by more than the names of variables, which it lists.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.kernels.cuda_source import ask, start
from tests.kernels.extremes import CASES
from tests.kernels.synchronized import CHECKED, HOPPER
from tkc.kernels import SPECS, KernelRequest
from tkc.kernels.all_cases import benchmark_cases, tuning_cases
from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.library_calls import without_libraries
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters

_ATTEMPTS = 6
_OWN = threading.local()
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")

_HEADS = AttentionParameters(8, 2, 128, 128, "bfloat16", 0.125)
_LATENT = LatentParameters(16, 512, 64, "bfloat16", 0.1)
_EPILOGUE = MatmulParameters(512, 640, "bfloat16", bias=True, activation="gelu", residual=True)

VARIANTS: dict[str, tuple[Any, ...]] = {
    "matmul": (
        _EPILOGUE,
        replace(_EPILOGUE, weight_layout="kn", activation="silu"),
        replace(_EPILOGUE, n=776, outputs=(256, 264, 256), residual=False),
        replace(_EPILOGUE, dtype="float32"),
        replace(_EPILOGUE, dtype="float32", weight_layout="kn", residual=False),
        MatmulParameters(520, 648, "float16", weight_layout="kn", activation="relu"),
        MatmulParameters(512, 640, "bfloat16", out_dtype="float32", residual=True),
        MatmulParameters(513, 641, "bfloat16", bias=True),
    ),
    "matmul.scaled": (ScaledMatmulParameters(1000, 512), ScaledMatmulParameters(1024, 384, "float16")),
    "matmul.gated": (
        GatedMatmulParameters(512, 640, "bfloat16", "kn", "gelu", packed=True, bias=True),
        GatedMatmulParameters(512, 640, "float16", "nk", "gelu_tanh", bias=True),
        GatedMatmulParameters(513, 641, "bfloat16"),
    ),
    "matmul.grouped": (
        GroupedMatmulParameters(9, 512, 640, "float16", "gkn"),
        GroupedMatmulParameters(9, 512, 640, "bfloat16", "gkn", gated="gelu", rows="int32"),
        GroupedMatmulParameters(40, 512, 640, "bfloat16", rows="int32"),
        GroupedMatmulParameters(9, 513, 641, "bfloat16"),
    ),
    "matmul.batched": (
        BatchedMatmulParameters(512, 640, "float16", "kn", "float32"),
        BatchedMatmulParameters(None, 640, "bfloat16"),
        BatchedMatmulParameters(512, None, "bfloat16"),
        BatchedMatmulParameters(513, 641, "bfloat16"),
    ),
    "attention.prefill": (
        replace(_HEADS, causal="bottom_right", window=511, sinks=True),
        replace(_HEADS, mask="bool", softcap=30.0),
        replace(_HEADS, mask="additive", mask_per_head=True, causal="top_left"),
        replace(_HEADS, mask="bool", mask_per_batch=True, mask_per_query=False),
        replace(_HEADS, head_size=192, causal="top_left", q_layout="bshd", k_layout="bshd", v_layout="bshd"),
        replace(_HEADS, head_size=256, value_head_size=256, out_layout="bshd"),
    ),
    "attention.decode": (
        replace(_HEADS, mask="additive", softcap=30.0),
        replace(_HEADS, sinks=True, q_layout="bshd", k_layout="bshd"),
    ),
    "attention.latent_decode": (
        _LATENT,
        replace(_LATENT, mask="bool", mask_per_head=True, joined_cache=True),
        replace(_LATENT, num_heads=128, mask="additive", latent_size=256, joined_queries=True),
    ),
}


def requests(quick: bool) -> dict[str, KernelRequest]:
    """Every kernel that is generated, by its symbol; ``quick``: those of the tests and the variants alone."""
    parameters = [(kernel, p) for kernel, variants in VARIANTS.items() for p in variants]
    if not quick:
        parameters += [(case.kernel, case.parameters) for case in CASES.values()]
        parameters += [(case.kernel, case.parameters) for case in (*benchmark_cases(), *tuning_cases())]
    found = [checked.request for checked in CHECKED.values()]
    for kernel, p in dict.fromkeys(parameters):
        spec = SPECS[kernel]
        if spec.unsupported(p, HOPPER) is None:
            own = without_libraries(spec.configurations(p, HOPPER))
            found += [KernelRequest(kernel, p, c, HOPPER) for c in own]
    return {request.symbol: request for request in found}


def _sources(processes: int, wanted: dict[str, KernelRequest]) -> Iterator[tuple[str, str]]:
    """The CUDA of all, by symbol; of a kernel that cannot be generated, why."""
    with ThreadPoolExecutor(processes) as pool:
        yield from zip(wanted, pool.map(generated, wanted.values()), strict=True)


def generated(request: KernelRequest) -> str:
    """The CUDA of a kernel, by a process for each thread."""
    if not hasattr(_OWN, "process"):
        _OWN.process = start()
    answer = ask(_OWN.process, request)
    return answer["source"] if "source" in answer else f"error: {answer['error'].strip().splitlines()[-1]}"


def compared(request: KernelRequest, before: str, source: str) -> tuple[str, str]:
    """How the code compares to that of before, and the code.

    Of shared buffers with one name, TileLang puts now this one first, now that one: code that differs is generated a
    few times more.
    """
    for attempt in range(_ATTEMPTS):
        source = generated(request) if attempt else source
        if source == before:
            return "identical", source
        if renamed(source) == renamed(before):
            return "renamed", source
    return "different", source


def renamed(source: str) -> str:
    """The code with its identifiers numbered in the order in which they first appear."""
    numbers: dict[str, str] = {}
    return _IDENTIFIER.sub(lambda m: numbers.setdefault(m.group(), f"v{len(numbers)}"), source)


def renamings(before: str, after: str) -> set[str]:
    """Which identifiers of code that is equal but for their names have other ones."""
    pairs = zip(_IDENTIFIER.findall(before), _IDENTIFIER.findall(after), strict=True)
    return {f"{old} -> {new}" for old, new in pairs if old != new}


def main() -> int:
    """Exit status: 1 if code differs, or kernels come or go."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("save", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="the only kernel family to generate")
    parser.add_argument("--stride", type=int, default=1, help="generate every so manieth kernel alone")
    parser.add_argument("--quick", action="store_true", help="leave out the benchmarks' and the tuning's kernels")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--diffs", type=int, default=3, help="how many differences to print in full")
    args = parser.parse_args()
    chosen = [(s, r) for s, r in requests(args.quick).items() if args.only in ("", r.kernel)]
    wanted = dict(chosen[:: args.stride])
    args.folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    names: set[str] = set()
    for symbol, source in _sources(args.processes, wanted):
        saved = args.folder / f"{symbol}.cu"
        if args.command == "save":
            saved.write_text(source)
            counts["saved, of which errors" if source.startswith("error") else "saved"] += 1
            continue
        if not saved.exists():
            counts["not saved"] += 1
            continue
        before = saved.read_text()
        same, source = compared(wanted[symbol], before, source)
        counts[same] += 1
        if same == "renamed":
            names |= renamings(before, source)
        if same == "different":
            print(f"different: {wanted[symbol]} {wanted[symbol].configuration}", flush=True)
            if counts[same] <= args.diffs:
                print("\n".join(difflib.unified_diff(before.splitlines(), source.splitlines(), lineterm="", n=1)))
    if names:
        print("renamed:", ", ".join(sorted(names)))
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
