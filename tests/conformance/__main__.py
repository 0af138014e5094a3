"""``python -m tests.conformance``: every operator of PyTorch's database through export and TKC.

Results go to a file, a line as each operator is done in a dtype; ``--resume`` leaves out what is in it already.
``--record`` writes the committed table of all results in the file; ``--slice`` runs what CI runs on a day.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections import Counter
from pathlib import Path

# Before PyTorch is loaded: a process that asked CUDA for its devices could not be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TVM_NUM_THREADS", "1")


def main() -> int:
    """Run what was asked for; 1 if anything was wrong, crashed, hung, or failed inside."""
    options = _options()
    if not options.target.startswith("cuda"):
        # Exporting a graph saves the random state of a GPU, if there is one, and forked processes have no CUDA then.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from . import record, results
    from .run import load, run
    from .samples import operators, supported
    from .verdicts import FAULTS, KINDS, Case

    device = "cuda" if options.target.startswith("cuda") else "cpu"
    load(device)
    names = [name for name in operators() if not options.only or name in options.only]
    if unknown := set(options.only or ()) - set(names):
        sys.exit(f"no operator is called {', '.join(sorted(unknown))}")
    cases = [
        Case(name, dtype, options.target, options.most, options.fallback, options.behind)
        for name in names
        for dtype in supported(name, device)
    ]
    cases = [case for case in cases if not options.dtype or case.dtype in options.dtype]
    if options.slice:
        cases = record.slice_of(options.slice, cases)
    cases = results.part(cases, *options.part)
    known = results.read([options.results]) if options.results.exists() else {}
    if options.slice:
        known = {}
    elif options.failed:
        cases = [case for case in cases if case in known and known[case].faults]
    elif options.resume:
        cases = [case for case in cases if case not in known or known[case].version != results.code_version()]
    elif options.results.exists() and not options.only:
        sys.exit(f"{options.results} exists; --resume goes on with it, --failed repeats what failed")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    for number, result in enumerate(run(cases, options.jobs), 1):
        results.append(options.results, result)
        total.update(result.counts)
        counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.items())
        print(f"[{number}/{len(cases)}] {result.case.operator} {result.case.dtype} {result.seconds:.1f} s: {counts}")
        for verdict in result.verdicts if options.only else result.faults:
            print(f"    {verdict.kind} #{verdict.index} ({verdict.sample}): {verdict.reason}")
        sys.stdout.flush()
        if time.monotonic() > end:
            print(f"stopped after {options.seconds:.0f} s, {len(cases) - number} of {len(cases)} cases before the end")
            break
    if options.record:
        found = [
            result
            for case, result in results.read([options.results]).items()
            if case.fallback == options.fallback and case.behind is None
        ]
        record.write(options.target, found, fallback=options.fallback)
    print(", ".join(f"{kind} {total[kind]}" for kind in KINDS))
    return 1 if any(total[kind] for kind in FAULTS) else 0


def _options() -> argparse.Namespace:
    from .samples import PRODUCERS  # loads PyTorch

    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--target", default="cpu", help="cpu, or cuda on a machine with a GPU")
    parser.add_argument("--fallback", action="store_true", help="call in PyTorch what has no converter")
    parser.add_argument("--behind", choices=PRODUCERS, help="fuse each operator behind a sum, or a matmul")
    parser.add_argument("--dtype", action="append", help="only this one (may be repeated)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this operator (may be repeated)")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="every N-th case, from the K-th")
    parser.add_argument("--most", type=int, help="at most so many samples of an operator and dtype, evenly spread")
    parser.add_argument("--resume", action="store_true", help="leave out what this code has a result of")
    parser.add_argument("--failed", action="store_true", help="only what was wrong, crashed, hung or failed inside")
    parser.add_argument("--slice", type=datetime.date.fromisoformat, metavar="DATE", help="the cases of a date")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many seconds")
    parser.add_argument("--record", action="store_true", help="write docs/conformance/ from the results of all cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--results", type=Path, default=Path("build/conformance/operators.jsonl"))
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    from .results import part_of  # loads PyTorch

    return part_of(text)


if __name__ == "__main__":
    sys.exit(main())
