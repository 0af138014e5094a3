"""``python -m tests.fuzz``: random graphs through export and TKC, for some minutes or up to a number of graphs.

Results go to a file, a line for each graph; ``--resume`` goes on behind the last one. What fails is made smaller, and
written to a folder as a test that can be pasted into ``tests/fuzz/test_found.py``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
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
    from tests.conformance.results import code_version

    from . import results
    from .forms import FORMS, Form, default_form
    from .found import signature, written_case
    from .judge import FAULTS, KINDS, Options, Verdict
    from .program import Program, source
    from .run import Chunk, judge_alone, judged_in_form, load, run
    from .shrink import shrink

    judged = Options(options.target, options.kernels, options.entry)
    form: Form = options.form or default_form(options.target)
    generate = FORMS[form]
    load(judged)
    version = code_version()

    def alone(program: Program) -> Verdict:
        return judge_alone(program, judged)

    def smaller(seed: int, index: int) -> str:
        program, first = judged_in_form(generate(seed, index), form, alone)
        if first.kind not in FAULTS:
            return f"# graph {index} of seed {seed}: {first.kind} when it is tried again ({first.reason})\n"
        wanted = signature(first)
        shrunk = shrink(program, lambda candidate: signature(alone(candidate)) == wanted, options.shrink_seconds)
        last = alone(shrunk)
        return written_case(f"seed_{seed}_graph_{index}", shrunk, last)

    if options.replay is not None:
        program, verdict = judged_in_form(generate(options.seed, options.replay), form, alone)
        print(source(program))
        print(program.sizes.by_name())
        for given in program.inputs:
            print(given)
        print(verdict)
        if verdict.kind in FAULTS and options.shrink:
            print(smaller(options.seed, options.replay))
        return 1 if verdict.kind in FAULTS else 0

    asked = (options.seed, judged, form)
    known = [each for each in results.read(options.results) if (each.seed, each.options, each.form) == asked]
    if known and not options.resume and not options.again:
        sys.exit(f"{options.results} has graphs of seed {options.seed}; --resume goes on with them")
    done = {each.index for each in known if not (options.again and each.verdict.kind in FAULTS)}
    end = time.monotonic() + options.minutes * 60
    again = sorted({each.index for each in known} - done)
    source_of_indices = iter(again) if options.again else (i for i in itertools.count(options.first) if i not in done)

    def chunks() -> Iterator[Chunk]:
        left = options.graphs if options.graphs is not None else sys.maxsize
        while time.monotonic() < end and left > 0:
            indices = tuple(itertools.islice(source_of_indices, min(options.chunk, left)))
            if not indices:
                return
            left -= len(indices)
            yield Chunk(options.seed, indices, judged, form)

    total: Counter[str] = Counter()
    calls, seen = 0, Counter[str]()
    for chunk, verdicts in run(chunks(), options.jobs):
        for each in verdicts:
            result = results.Result(
                chunk.seed, each.index, judged, version, each.operators, each.seconds, each.verdict, form
            )
            results.append(options.results, result)
            total[each.verdict.kind] += 1
            calls += each.verdict.calls
            if each.verdict.kind in FAULTS:
                print(f"{each.verdict.kind}: graph {each.index} of seed {chunk.seed}: {each.verdict.reason}")
                seen[signature(each.verdict)] += 1
                if options.shrink and seen[signature(each.verdict)] <= 1:
                    options.found.mkdir(parents=True, exist_ok=True)
                    (options.found / f"seed_{chunk.seed}_graph_{each.index}.py").write_text(
                        smaller(chunk.seed, each.index)
                    )
        print(f"{sum(total.values())} graphs, {calls} calls: " + ", ".join(f"{total[k]} {k}" for k in KINDS))
        sys.stdout.flush()
    return 1 if any(total[kind] for kind in FAULTS) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--graphs", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first graph's number")
    parser.add_argument("--target", default="cpu", help="cpu, or cuda on a machine with a GPU")
    parser.add_argument("--kernels", default="auto", choices=("auto", "all", "none"))
    parser.add_argument(
        "--entry", default="export", choices=("export", "dynamo"), help='torch.export, or torch.compile(backend="tkc")'
    )
    parser.add_argument(
        "--form",
        choices=("graphs", "fixed", "transformers", "chains"),
        help="any operators, at sizes that the compiler knows, with parts of transformers (default: on a GPU), or each "
        "pair of operators once a round",
    )
    parser.add_argument("--resume", action="store_true", help="go on behind what the results hold")
    parser.add_argument("--again", action="store_true", help="repeat what failed")
    parser.add_argument("--replay", type=int, metavar="GRAPH", help="only this graph of the seed, with its source")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shrink-seconds", type=float, default=240.0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--chunk", type=int, default=8, help="graphs that a process takes")
    parser.add_argument("--results", type=Path, default=Path("build/fuzz/graphs.jsonl"))
    parser.add_argument("--found", type=Path, default=Path("build/fuzz/found"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
