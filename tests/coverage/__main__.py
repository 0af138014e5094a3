"""``python -m tests.coverage``: models of PyTorch, transformers and other libraries through export and TKC, compared
with PyTorch. Libraries that are not installed (``pip install -e '.[coverage]'``) have no models.

Results go to a file, a line as each model is done; ``--resume`` leaves out what is in it already. ``--record`` writes
docs/models.md and docs/models.json (for a GPU models-cuda) from all results in the file; ``--slice`` runs what CI
runs on a day. A hang or a lack of memory may be the limits' own: ``--failed --seconds-each 2000 --gib-each 20`` tells.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TVM_NUM_THREADS", "1")


def main() -> int:
    """Run what was asked for; 1 if anything was wrong, crashed, hung, or failed inside."""
    options = _options()
    import torch

    from tests.conformance.results import append, code_version, part

    from . import record, results
    from .run import LIMITS, cases, cases_listed_apart, load, run, slice_of
    from .sources import absent, sources
    from .verdicts import FAULTS, KINDS, Setting

    for name in options.source or ():
        if name in absent():
            sys.exit(f"the library of {name} is not installed: pip install -e '.[coverage]'")
        if name not in sources():
            sys.exit(f"no source is called {name}; there are {', '.join(sources())}")
    setting = Setting(options.target, getattr(torch, options.dtype))
    load(setting)
    listed = (cases_listed_apart if setting.target == "cuda" else cases)(options.source)
    chosen = [case for case in listed if not options.only or case.name in options.only]
    if unknown := set(options.only or ()) - {case.name for case in chosen}:
        sys.exit(f"no model is called {', '.join(sorted(unknown))}")
    if options.slice:
        chosen = slice_of(options.slice, chosen)
    chosen = part(chosen, *options.part)
    known = results.read(options.results)
    repeated = {*(FAULTS if options.failed else ()), *(options.repeat or ())}
    if repeated:
        chosen = [case for case in chosen if case in known and repeated & set(known[case].counts)]
    elif options.resume:
        chosen = [case for case in chosen if case not in known or known[case].version != code_version()]
    elif known and options.seconds > 0 and not options.only and not options.slice:
        sys.exit(f"{options.results} exists; --resume goes on with it, --failed repeats what failed")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    limits = replace(
        LIMITS,
        seconds=options.seconds_each or LIMITS.seconds,
        memory=options.gib_each << 30 if options.gib_each else LIMITS.memory,
    )
    for number, result in enumerate(run(chosen, options.jobs, limits, setting), 1) if options.seconds > 0 else ():
        append(options.results, result)
        total.update(result.counts)
        counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.items())
        print(f"[{number}/{len(chosen)}] {result.case.source} {result.case.name} {result.seconds:.1f} s: {counts}")
        for verdict in result.verdicts:
            if verdict.kind in FAULTS or (options.only and (verdict.reason or verdict.operators)):
                print(f"    {verdict.kind} {verdict.variant}: {verdict.reason} {' '.join(verdict.operators)}")
        sys.stdout.flush()
        if time.monotonic() > end:
            print(f"stopped after {options.seconds:.0f} s, {len(chosen) - number} models before the end")
            break
    for name in absent():
        print(f"{name}: not installed")
    if options.record:
        record.write(results.read(options.results).values(), len(cases()), setting)
    print(", ".join(f"{kind} {total[kind]}" for kind in KINDS))
    return 1 if any(total[kind] for kind in FAULTS) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--source", action="append", help="only this one (may be repeated)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this model (may be repeated)")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="every N-th model, from the K-th")
    parser.add_argument("--resume", action="store_true", help="leave out what this code has a result of")
    parser.add_argument("--failed", action="store_true", help="only what was wrong, crashed, hung or failed inside")
    parser.add_argument("--repeat", action="append", metavar="VERDICT", help="only what had it (may be repeated)")
    parser.add_argument("--slice", type=datetime.date.fromisoformat, metavar="DATE", help="the models of a date")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so many; 0: none")
    parser.add_argument("--seconds-each", type=float, help="a limit for each variant of a model")
    parser.add_argument("--gib-each", type=int, help="a limit of memory for each process")
    parser.add_argument("--record", action="store_true", help="write docs/models.md and docs/models.json")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu", help="cuda: on a machine with a GPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--results", type=Path, default=Path("build/coverage/models.jsonl"))
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    from tests.conformance.results import part_of  # loads PyTorch

    return part_of(text)


if __name__ == "__main__":
    sys.exit(main())
