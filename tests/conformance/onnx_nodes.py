"""ONNX's backend tests, each compiled for the CPU and compared with the outputs that ONNX expects of it.

Every case runs in a worker process with a limit of time, so that a crash or a hang is one case's verdict. A case runs
twice where it has several inputs: with all of them given at the call, and with all but the first bound as constants,
as exporters write shapes, axes and scales. Verdicts are appended to a file of JSON lines, which a later run resumes.

    python tests/conformance/onnx_nodes.py --all            # everything, then docs/conformance/onnx.{json,md}
    python tests/conformance/onnx_nodes.py --all --part 2/4
    python tests/conformance/onnx_nodes.py --slice 2026-11-24
    python tests/conformance/onnx_nodes.py test_gather_0 test_cast_FLOAT_to_DOUBLE
    python tests/conformance/onnx_nodes.py --record test_gather_0   # again, then the record of all that was run
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "conformance" / "onnx.json"
TABLE = RECORD.with_suffix(".md")
RUNTIME = RECORD.with_name("onnx_runtime.json")
"""What ONNX Runtime passes, as :mod:`tests.conformance.onnx_runtime` writes it."""
PROGRESS = ROOT / "build" / "conformance" / "onnx.jsonl"

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
VERDICTS = ("right", "refused", "wrong", "internal", "crash", "hang")
FAILURES = VERDICTS[2:]

# A month of daily slices sees every case.
DAYS = 28

# Seconds after which a case counts as hanging. Few take more than two.
LIMIT = 120.0

# Bytes of address space that a worker may take: a case that wants more is a fault.
MEMORY = 16 << 30

# Cases that one worker runs, so that what compilations leave behind does not pile up.
CASES_PER_WORKER = 300

# What no two runtimes draw alike, so that only which numbers there are is compared.
RANDOM = ("test_bernoulli",)

# In how many units of the last place a chain of operations in 16 bits may differ from ONNX's own.
ROUNDINGS = 4


@dataclass(frozen=True)
class Run:
    """One way to run a case."""

    case: str
    constants: bool

    @property
    def mode(self) -> str:
        """Where the inputs behind the first come from."""
        return "constants" if self.constants else "inputs"


@dataclass(frozen=True)
class Verdict:
    """What came of a run: one of :data:`VERDICTS`, and why, where it is not right."""

    case: str
    mode: str
    verdict: str
    detail: str
    seconds: float
    commit: str = ""


# Cases


def backend_cases() -> dict[str, TestCase]:
    """ONNX's own tests of operators and small models, by name, in a stable order."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return {case.name: case for case in sorted(cases, key=lambda case: (zlib.crc32(case.name.encode()), case.name))}


def runs(cases: Iterable[TestCase]) -> list[Run]:
    """The ways to run each case."""
    result = []
    for case in cases:
        result.append(Run(case.name, constants=False))
        if len(inputs_of(model_of(case))) > 1:
            result.append(Run(case.name, constants=True))
    return result


def model_of(case: TestCase) -> onnx.ModelProto:
    """The model of a case."""
    return case.model if case.model is not None else onnx.load(Path(case.model_dir or "") / "model.onnx")


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives: before IR version 4, initializers are listed among a graph's inputs."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def data_sets(case: TestCase) -> Iterator[tuple[list[Any], list[Any]]]:
    """The inputs and expected outputs of each of a case's data sets."""
    model = model_of(case)
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield _arrays(inputs), _arrays(outputs)
        return
    for folder in sorted(Path(case.model_dir or "").glob("test_data_set_*")):
        yield (
            [_stored(folder / f"input_{i}.pb", value) for i, value in enumerate(inputs_of(model))],
            [_stored(folder / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)],
        )


def _stored(path: Path, value: onnx.ValueInfoProto) -> Any:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.load_tensor(path))


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Tensors as arrays; sequences and optional values as they are."""
    arrays = [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in arrays]


# One run, in a worker


def judged(case: TestCase, constants: bool) -> tuple[str, str]:
    """The verdict on one run of a case, and the reason."""
    import tkc
    from tkc.errors import InputError, UnsupportedModelError
    from tkc.runtime.tensors import from_torch_as, narrowed

    to_array = from_torch_as(np.empty(0))
    try:
        for given, expected in data_sets(case):
            model = model_of(case)
            inputs, bound = _split(model, given, constants)
            # How many tensors a sequence has is what the file leaves open.
            open_inputs = {
                value.name: each
                for value, each in zip(inputs_of(model), given, strict=True)
                if not value.type.HasField("tensor_type")
            }
            executable = tkc.compile(
                model, target="cpu", kernels="none", constants=bound, example_kwargs=open_inputs or None
            )
            structured = executable.signature.in_spec is not None or executable.signature.out_spec is not None
            if structured:
                returned = executable(*inputs)
                one = len(expected) == 1
                outputs: list[Any] = [returned] if one else list(returned)
            else:
                outputs = [
                    narrowed(to_array(output), spec.dtype) if spec.held != spec.dtype else to_array(output)
                    for output, spec in zip(executable.run_flat(inputs), executable.signature.outputs, strict=True)
                ]
            if (difference := disagreement(outputs, expected, case)) is not None:
                return "wrong", difference
    except (UnsupportedModelError, InputError) as error:  # when the model is compiled, or at the call
        return "refused", str(error)
    except Exception as error:
        return "internal", f"{type(error).__name__}: {error}"
    return "right", ""


def _split(
    model: onnx.ModelProto, given: Sequence[Any], constants: bool
) -> tuple[list[Any], dict[str, np.ndarray] | None]:
    """What the call is given, and what is bound as constants: if asked for, every tensor but the first."""
    if not constants:
        return list(given), None
    inputs: list[Any] = []
    bound: dict[str, np.ndarray] = {}
    for value, array in zip(inputs_of(model), given, strict=True):
        if inputs and value.type.HasField("tensor_type"):
            bound[value.name] = array
        else:
            inputs.append(array)
    return inputs, bound


def disagreement(outputs: Sequence[Any], expected: Sequence[Any], case: TestCase) -> str | None:
    """Where outputs, tensors and sequences of them, differ from what a case expects; ``None`` where they agree."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for output, reference in zip(outputs, expected, strict=True):
        if reference is None or isinstance(reference, list | tuple):
            if reference is None or output is None or not isinstance(output, list | tuple):
                found = None if output is None and reference is None else f"{output} instead of {reference}"
            else:
                found = disagreement(output, reference, case)
        else:
            found = _difference(np.asarray(output), np.asarray(reference), case)
        if found is not None:
            return found
    return None


def _difference(output: np.ndarray, reference: np.ndarray, case: TestCase) -> str | None:
    if (output.dtype, output.shape) != (reference.dtype, reference.shape):
        return f"{output.dtype}{output.shape} instead of {reference.dtype}{reference.shape}"
    if case.name.startswith(RANDOM):
        odd = set(np.unique(output).tolist()) - set(np.unique(reference).tolist())
        return f"{odd} among random numbers" if odd else None
    rtol, atol = case.rtol, case.atol
    if output.dtype in (np.float16, ml_dtypes.bfloat16):
        rtol = max(rtol, ROUNDINGS * float(ml_dtypes.finfo(output.dtype).eps))
    if output.dtype.kind not in "biuf":  # the types that NumPy does not know, whose numbers float32 holds
        output, reference = output.astype("float32"), reference.astype("float32")
    if case.name.startswith(("test_dft", "test_stft")):  # each number is a sum of all, and errs with the largest
        atol = max(atol, ROUNDINGS * float(np.finfo(output.dtype).eps * np.abs(reference).max(initial=0)))
    close = np.isclose(output, reference, rtol, atol, equal_nan=True)
    if close.all():
        return None
    return f"{output[~close][:4]} instead of {reference[~close][:4]}, {(~close).sum()} of {close.size} elements"


# Workers


def verdicts(todo: Sequence[Run], cases: dict[str, TestCase], limit: float = LIMIT) -> Iterator[Verdict]:
    """The verdict on each run, one by one. A worker that dies or takes longer than ``limit`` seconds is replaced."""
    worker: BaseProcess | None = None
    served = 0
    # Forked from a process that has the cases and no threads: loading them again would take longer than most runs.
    context = multiprocessing.get_context("fork")
    try:
        for run in todo:
            if worker is None:
                mine, its = context.Pipe()
                worker, served = context.Process(target=_serve, args=(its, cases), daemon=True), 0
                worker.start()
                its.close()
            began = time.monotonic()
            mine.send(run)
            verdict, detail = _answer(mine, worker, limit)
            served += 1
            if verdict in ("crash", "hang") or served == CASES_PER_WORKER:
                worker.kill()
                worker.join()
                worker = None
            yield Verdict(run.case, run.mode, verdict, detail, round(time.monotonic() - began, 2))
    finally:
        if worker is not None:
            worker.kill()
            worker.join()


def _answer(connection: Connection, worker: BaseProcess, limit: float) -> tuple[str, str]:
    try:
        if not connection.poll(limit):
            return "hang", f"no result in {limit:.0f} s"
        answer: tuple[str, str] = connection.recv()
        return answer
    except (EOFError, ConnectionResetError):
        worker.join()
        return "crash", f"exit code {worker.exitcode}"


def _serve(connection: Connection, cases: dict[str, TestCase]) -> None:
    # What TVM and LLVM have to say goes nowhere: verdicts carry their own reasons.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ.update(OMP_NUM_THREADS="1", TVM_NUM_THREADS="1")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    with contextlib.suppress(EOFError):
        while True:
            run = connection.recv()
            connection.send(judged(cases[run.case], run.constants))


# Records


def conform(part: int = 0, parts: int = 1, progress: Path = PROGRESS) -> list[Verdict]:
    """Every case of one part, those that ``progress`` already has left out; the verdicts of all it then has.

    Once all parts are there, :func:`write_record` makes the table of them.
    """
    cases = backend_cases()
    todo = runs(cases.values())
    done = read_progress(progress)
    mine = [run for i, run in enumerate(todo) if i % parts == part and (run.case, run.mode) not in done]
    for verdict in noted(verdicts(mine, cases), progress):
        if verdict.verdict in FAILURES:
            print(f"{verdict.verdict}: {verdict.case} ({verdict.mode}): {verdict.detail[:300]}", flush=True)
    return list(read_progress(progress).values())


def noted(found: Iterable[Verdict], progress: Path) -> Iterator[Verdict]:
    """The verdicts, each with the commit and as a line of ``progress`` before the next one is begun."""
    commit = _commit()
    progress.parent.mkdir(parents=True, exist_ok=True)
    with progress.open("a") as lines:
        for verdict in found:
            lines.write(json.dumps(dataclasses.asdict(dataclasses.replace(verdict, commit=commit))) + "\n")
            lines.flush()
            yield verdict


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def read_progress(path: Path) -> dict[tuple[str, str], Verdict]:
    """The verdicts in a file of JSON lines, by case and mode; the last of each counts."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off
            verdict = Verdict(**json.loads(line))
            found[verdict.case, verdict.mode] = verdict
    return found


def read_record() -> dict[str, Any]:
    """The committed record: the verdicts by case and mode, and the cases that once failed."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {"verdicts": {}, "refusals": {}, "once_failed": []}


def write_record(found: Sequence[Verdict]) -> None:
    """Write the record and its table. A case that ever failed stays listed, so that every slice runs it."""
    once = set(read_record()["once_failed"]) | {v.case for v in found if v.verdict in FAILURES}
    by_case: dict[str, dict[str, str]] = {}
    refusals: dict[str, str] = {}
    for verdict in sorted(found, key=lambda verdict: (verdict.case, verdict.mode)):
        by_case.setdefault(verdict.case, {})[verdict.mode] = verdict.verdict
        if verdict.verdict != "right":
            refusals.setdefault(verdict.case, verdict.detail)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "onnx": onnx.__version__,
        "date": datetime.date.today().isoformat(),
        "commits": dict(Counter(verdict.commit for verdict in found)),
        "runs": len(runs(backend_cases().values())),
        "verdicts": by_case,
        "refusals": refusals,
        "once_failed": sorted(once),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    TABLE.write_text(_table(record))


def _table(record: dict[str, Any]) -> str:
    cases = backend_cases()
    rows: dict[tuple[str, str], Counter[str]] = {}
    total: dict[str, Counter[str]] = {mode: Counter() for mode in ("inputs", "constants")}
    for name, modes in record["verdicts"].items():
        operator = _operator(cases[name])
        for mode, verdict in modes.items():
            total[mode][verdict] += 1
            if verdict != "right":
                rows.setdefault((operator, mode), Counter())[verdict] += 1
    lines = [
        "# ONNX's backend tests on the CPU",
        "",
        f"Written by `python -m tests.conformance.onnx_nodes --all` on {record['date']} with onnx {record['onnx']}: "
        f"the cases of kinds {', '.join(KINDS)}, each with all inputs given at the call, and, of several inputs, with "
        "all but the first bound as constants. Reasons of refusals stand in `onnx.json`.",
        "",
        f"{sum(record['commits'].values()):,} of {record['runs']:,} runs: "
        + ", ".join(f"{count:,} at commit {commit}" for commit, count in record["commits"].items())
        + ".",
        "",
        f"| inputs behind the first | {' | '.join(VERDICTS)} |",
        f"|---|{'---:|' * len(VERDICTS)}",
        *(f"| {mode} | {' | '.join(str(total[mode][verdict]) for verdict in VERDICTS)} |" for mode in total),
        "",
        *_goals(record, cases),
        "",
        "## Operators with cases that are not right",
        "",
        f"| operator | inputs | {' | '.join(VERDICTS[1:])} |",
        f"|---|---|{'---:|' * (len(VERDICTS) - 1)}",
        *(
            f"| {operator} | {mode} | {' | '.join(str(counts[verdict] or '') for verdict in VERDICTS[1:])} |"
            for (operator, mode), counts in sorted(rows.items())
        ),
    ]
    return "\n".join(lines) + "\n"


def _goals(record: dict[str, Any], cases: dict[str, TestCase]) -> list[str]:
    """The shares of right cases that are aimed at, beside what they are."""
    verdicts: dict[str, dict[str, str]] = record["verdicts"]
    rows = [("every input at the call", [modes["inputs"] == "right" for modes in verdicts.values()], 90)]
    # Of a model with one input nothing is bound.
    bound = {name: modes.get("constants", modes["inputs"]) == "right" for name, modes in verdicts.items()}
    if RUNTIME.exists():
        runtime = json.loads(RUNTIME.read_text())
        of_runtime = [bound[name] for name in runtime["passed"] if name in bound]
        rows.append((f"of what ONNX Runtime {runtime['onnxruntime']} passes, shapes bound", of_runtime, 98))
    models = [modes["inputs"] == "right" for name, modes in verdicts.items() if cases[name].kind in KINDS[1:]]
    rows.append(("`simple` and `pytorch-*`, every input at the call", models, 95))
    return [
        "| goal | cases | right | share | aimed at |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {what} | {len(found)} | {sum(found)} | {100 * sum(found) / len(found):.1f} % | {aim} % |"
            for what, found, aim in rows
        ),
    ]


def _operator(case: TestCase) -> str:
    """The operator that a case is about: that of its last node, or, of an expanded one, the function's."""
    node = model_of(case).graph.node[-1]
    prefix = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    return (
        f"expanded {case.name.removeprefix('test_').split('_')[0]}"
        if "_expanded" in case.name
        else prefix + node.op_type
    )


# Slices


def slice_of(day: datetime.date, cases: dict[str, TestCase]) -> list[Run]:
    """The runs of one day: its share of all cases, and every case that once failed."""
    once = set(read_record()["once_failed"])
    chosen = [case for i, case in enumerate(cases.values()) if i % DAYS == day.toordinal() % DAYS or case.name in once]
    return runs(chosen)


def regressions(found: Iterable[Verdict]) -> list[str]:
    """What failed, or is refused though the record has it right."""
    known = read_record()["verdicts"]
    return [
        f"{verdict.case} ({verdict.mode}): {verdict.verdict}: {verdict.detail}"
        for verdict in found
        if verdict.verdict in FAILURES
        or (verdict.verdict == "refused" and known.get(verdict.case, {}).get(verdict.mode) == "right")
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a case failed or is refused that was right."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", help="names of cases")
    parser.add_argument("--all", action="store_true", help="every case, resuming; writes the record")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts of --all; no record is written")
    parser.add_argument("--slice", type=datetime.date.fromisoformat, help="the cases of a date")
    parser.add_argument("--record", action="store_true", help="run the named cases again, and write the record of all")
    parser.add_argument("--progress", type=Path, default=PROGRESS)
    options = parser.parse_args(arguments)
    if options.all:
        part, parts = map(int, options.part.split("/"))
        found = conform(part - 1, parts, options.progress)
        if parts == 1:
            write_record(found)
    else:
        cases = backend_cases()
        chosen = slice_of(options.slice, cases) if options.slice else runs(cases[name] for name in options.cases)
        found, results = [], verdicts(chosen, cases)
        for verdict in noted(results, options.progress) if options.record else results:
            found.append(verdict)
            print(
                f"{verdict.verdict:8} {verdict.seconds:6.2f} {verdict.case} ({verdict.mode}) {verdict.detail[:200]}",
                flush=True,
            )
        if options.record:
            write_record(list(read_progress(options.progress).values()))
    counts = Counter(verdict.verdict for verdict in found)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    worse = regressions(found)
    print("\n".join(worse))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
