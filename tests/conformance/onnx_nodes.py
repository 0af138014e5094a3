"""ONNX's backend tests, each compiled for the CPU and compared with the outputs that ONNX expects of it.

Every case runs in a worker process with a limit of time, so that a crash or a hang is one case's verdict. A case runs
twice where it has several inputs: with all of them given at the call, and with all but the first bound as constants,
as exporters write shapes, axes and scales. Verdicts are appended to a file of JSON lines, which a later run resumes.

    python -m tests.conformance.onnx_nodes --all            # everything, then docs/conformance/onnx.{json,md}
    python -m tests.conformance.onnx_nodes --all --part 2/4
    python -m tests.conformance.onnx_nodes --slice 2026-11-24
    python -m tests.conformance.onnx_nodes test_gather_0 test_cast_FLOAT_to_DOUBLE
    python -m tests.conformance.onnx_nodes --record test_gather_0   # again, then the record of all that was run
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.onnx_cases import Run, backend_cases, data_sets, disagreement, inputs_of, model_of, runs
from tests.conformance.onnx_record import (
    FAILURES,
    PROGRESS,
    VERDICTS,
    Verdict,
    noted,
    read_progress,
    read_record,
    regressions,
    write_record,
)

# A month of daily slices sees every case.
DAYS = 28

# Seconds after which a case counts as hanging. Few take more than two.
LIMIT = 120.0

# Bytes of address space that a worker may take: a case that wants more is a fault.
MEMORY = 16 << 30

# Cases that one worker runs, so that what compilations leave behind does not pile up.
CASES_PER_WORKER = 300


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
                    output
                    if spec.is_text
                    else narrowed(to_array(output), spec.dtype)
                    if spec.is_narrow
                    else to_array(output)
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


def slice_of(day: datetime.date, cases: dict[str, TestCase]) -> list[Run]:
    """The runs of one day: its share of all cases, and every case that once failed."""
    once = set(read_record()["once_failed"])
    chosen = [case for i, case in enumerate(cases.values()) if i % DAYS == day.toordinal() % DAYS or case.name in once]
    return runs(chosen)


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
