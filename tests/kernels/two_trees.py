"""``python -m tests.kernels.two_trees build|time``: the benchmarks' kernels of two versions of TKC, timed by turns.

On a machine with a Hopper GPU, in each of two working trees, then in the newer one:

    python -m tests.kernels.two_trees build old.json attention.prefill     # in the older tree (copy this file there)
    python -m tests.kernels.two_trees build new.json attention.prefill
    python -m tests.kernels.two_trees time old.json new.json

A row's ratio is the older kernel's time over the newer one's. The older kernel takes part twice, and the ratio of its
own two times says what a difference has to exceed. Rows are those of ``tkc bench kernels``, by the same names.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import tvm_ffi

from tkc.bench.kernels import row_name
from tkc.builder import KernelBuilder
from tkc.databases import kernel_choices
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.all_cases import benchmark_cases
from tkc.kernels.cases import Case
from tkc.measure.chosen_cases import chosen_cases
from tkc.measure.prepared_case import Prepared
from tkc.measure.timing import kernel_timings

_TARGET = Target.parse("cuda:sm_90a")
_SECONDS = 0.25
_WITHIN = 0.02


def build(path: Path, names: list[str]) -> int:
    """Build the rows of the kernels called ``names`` (all if empty); write each row's library and symbol."""
    requests = _requests(chosen_cases(benchmark_cases(), names, None))
    with KernelBuilder() as builder:
        libraries = builder.build(requests.values())
    rows = {name: (str(libraries[request].path), request.symbol) for name, request in requests.items()}
    path.write_text(json.dumps(rows))
    print(f"{len(rows)} rows: {path}")
    return 0


def time(older: Path, newer: Path) -> int:
    """Time the rows of two files by turns; 1 if any differs by more than 2 % and by more than the older one itself."""
    old, new = (json.loads(path.read_text()) for path in (older, newer))
    device = torch.device("cuda")
    cases = {row_name(case): case for case in benchmark_cases()}
    requests = _requests(list(cases.values()))
    differ = 0
    print(torch.cuda.get_device_name(), "older / newer, older / itself, relative error, microseconds")
    for name in [name for name in new if name in old]:
        prepared = Prepared(cases[name], device)
        calls, errors = {}, {}
        for who, (library, symbol) in (("old", old[name]), ("new", new[name]), ("old again", old[name])):
            function = tvm_ffi.load_module(library)[symbol]
            calls[who], errors[who] = prepared.calls(function, requests[name].configuration)
        taken = {who: timing.milliseconds for who, timing in kernel_timings(calls, device, _SECONDS).items()}
        ratio, itself = taken["old"] / taken["new"], taken["old"] / taken["old again"]
        beyond = abs(ratio - 1) > max(_WITHIN, abs(itself - 1))
        differ += beyond
        mark = "!" if beyond else " "
        print(f"{mark} {ratio:.3f} {itself:.3f} {errors['new']:.1e} {taken['new'] * 1e3:9.1f}  {name}", flush=True)
    print(f"{differ} of {len(new)} rows differ; not in the older tree: {len(set(new) - set(old))}")
    return 1 if differ else 0


def _requests(cases: list[Case]) -> dict[str, KernelRequest]:
    choices = kernel_choices(None, _TARGET)
    found = {}
    for case in cases:
        configuration = choices.configuration(SPECS[case.kernel], case.parameters, _TARGET, case.sizes)
        found[row_name(case)] = KernelRequest(case.kernel, case.parameters, configuration, _TARGET)
    return found


def main() -> int:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.two_trees", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    building = steps.add_parser("build")
    building.add_argument("file", type=Path)
    building.add_argument("names", nargs="*")
    timing = steps.add_parser("time")
    timing.add_argument("older", type=Path)
    timing.add_argument("newer", type=Path)
    options = parser.parse_args()
    return build(options.file, options.names) if options.step == "build" else time(options.older, options.newer)


if __name__ == "__main__":
    sys.exit(main())
