"""Graphs through the pool: what crashes, hangs or grows without bound ends one process, and is a verdict."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from tests.conformance.pool import Fate, Job, Limits, Pool, Watcher

from .forms import FORMS, Form
from .generate import generate
from .judge import Options, Verdict, judge, pytorch_alone
from .program import Program

LIMITS = Limits(seconds=120.0, patience=10.0, memory=6 << 30)


@dataclass(frozen=True)
class Chunk:
    """Some graphs of a seed."""

    seed: int
    indices: tuple[int, ...]
    options: Options
    form: Form

    def program(self, index: int) -> Program:
        """One of them."""
        return FORMS[self.form](self.seed, index)


@dataclass(frozen=True)
class Judged:
    """The verdict of a graph, its operators, and the seconds that it took."""

    index: int
    verdict: Verdict
    operators: int
    seconds: float


def load(options: Options) -> None:
    """Load, before anything is forked, what every graph needs: PyTorch's exporter, and the compiler."""
    torch.set_num_threads(1)
    if options.target == "cpu":
        # A few graphs, so that all lazy imports are done once; a process with CUDA could not be forked.
        for index in range(2):
            judge(generate(0, index), options)
    else:
        import tkc.frontend
        import tkc.pipeline  # noqa: F401
    gc.collect()
    gc.freeze()  # what is not looked at by collections stays one memory of all processes


def run(chunks: Iterable[Chunk], jobs: int = 1, limits: Limits = LIMITS) -> Iterator[tuple[Chunk, list[Judged]]]:
    """The verdicts of each chunk as it is done."""
    pool: Pool[Chunk, Judged] = Pool(_work, _fallen, jobs, limits)
    for chunk, judged, _ in pool.run(chunks):
        yield chunk, [_of_pytorch(chunk, each, limits) if each.verdict.kind == "crash" else each for each in judged]


def _work(job: Job[Chunk], watcher: Watcher) -> Iterator[tuple[int, Judged]]:
    chunk = job.key
    indices = chunk.indices if job.items is None else job.items
    watcher.all(indices)
    for index in indices:
        watcher.begin([index])
        start = time.process_time()
        program = chunk.program(index)
        _, verdict = judged_in_form(program, chunk.form, lambda each: judge(each, chunk.options))
        yield index, Judged(index, verdict, len(program.nodes), time.process_time() - start)


def _fallen(chunk: Chunk, index: int, fate: Fate, reason: str) -> Judged:
    return Judged(index, Verdict(fate, reason), 0 if index < 0 else len(chunk.program(index).nodes), 0.0)


def _of_pytorch(chunk: Chunk, judged: Judged, limits: Limits) -> Judged:
    """``judged``, a crash, as PyTorch's own where its process dies without TKC, too (attention of no heads in 2.11)."""
    if judged.index < 0:
        return judged
    program = chunk.program(judged.index)
    alone = _alone(lambda: pytorch_alone(program, chunk.options), limits)
    if alone.kind != "crash":
        return judged
    return replace(judged, verdict=Verdict("not exportable", f"PyTorch itself: {alone.reason}"))


def judged_in_form(program: Program, form: Form, judged: Callable[[Program], Verdict]) -> tuple[Program, Verdict]:
    """What ``judged`` says of a graph, and of which: of one of fixed sizes where chains are not exportable at others.

    One of ten chains would hide the rest.
    """
    verdict = judged(program)
    if verdict.kind != "not exportable" or form != "chains":
        return program, verdict
    fixed = program.of_fixed_sizes()
    return fixed, judged(fixed)


def judge_alone(program: Program, options: Options, limits: Limits = LIMITS) -> Verdict:
    """The verdict of one graph, in a process of its own."""
    return _alone(lambda: judge(program, options), limits)


def _alone(judged: Callable[[], Verdict], limits: Limits) -> Verdict:
    def work(job: Job[int], watcher: Watcher) -> Iterator[tuple[int, Verdict]]:
        watcher.all([0])
        watcher.begin([0])
        yield 0, judged()

    pool: Pool[int, Verdict] = Pool(work, lambda *fallen: Verdict(fallen[2], fallen[3]), 1, limits)
    ((_, (verdict,), _),) = list(pool.run([0]))
    return verdict
