"""What becomes of each sample of one operator: exported, compiled, run, compared, in as few compilations as it takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import tkc
from tkc.errors import InternalError, KernelBuildError

from .comparison import Expected
from .pool import Fate, Job, Watcher
from .samples import Packed, Sample, groups, operators, samples

Kind = Literal["right", "refused", "not exportable", "wrong", "internal", "crash", "hang"]
KINDS: tuple[Kind, ...] = ("right", "refused", "not exportable", "wrong", "internal", "crash", "hang")
FAULTS: tuple[Kind, ...] = ("wrong", "internal", "crash", "hang")
"""The verdicts of which there are to be none."""

PACKED = 24
"""Samples that are compiled as one module: more share what each compilation costs, and more fall with one that fails."""


@dataclass(frozen=True)
class Verdict:
    """Of one sample, with the reason where it is not right; a right one of random numbers says so."""

    index: int
    sample: str
    kind: Kind
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """The samples of an operator in one dtype on one target."""

    operator: str
    dtype: str
    target: str = "cpu"

    @property
    def device(self) -> str:
        """Where samples are made."""
        return "cuda" if self.target.startswith("cuda") else "cpu"


Begin = Callable[[Sequence[int]], None]


def judge(job: Job[Case], watcher: Watcher) -> Iterator[tuple[int, Verdict]]:
    """The verdict of each sample of ``job``, by the sample's index."""
    for verdict in _judged(job.key, watcher, job.items, job.size or PACKED):
        yield verdict.index, verdict


def _judged(case: Case, watcher: Watcher, only: Sequence[int] | None, size: int) -> Iterator[Verdict]:
    warnings.simplefilter("ignore")
    begin = watcher.begin
    wanted = [sample for sample in samples(case.operator, case.dtype, case.device) if only is None or sample.index in only]
    watcher.all([sample.index for sample in wanted])
    by_index = {sample.index: sample for sample in wanted}
    expected: dict[int, Expected] = {}
    for sample in wanted:
        begin([sample.index])
        try:
            nondeterministic = operators()[case.operator].has_nondeterministic_output
            expected[sample.index] = Expected(sample, case.dtype, nondeterministic)
        except Exception as error:
            yield Verdict(sample.index, sample.text, "not exportable", f"PyTorch itself: {first_line(error)}")
    for group in groups(sorted(expected), size):
        yield from _judge([by_index[index] for index in group], expected, case.target, begin)


def _judge(
    group: Sequence[Sample], expected: dict[int, Expected], target: str, begin: Begin
) -> Iterable[Verdict]:
    begin([sample.index for sample in group])
    failed, reason = _attempt(group, expected, target)
    if failed is None:
        return reason
    if len(group) == 1:
        return [Verdict(group[0].index, group[0].text, failed, reason)]
    middle = len(group) // 2
    halves = (group[:middle], group[middle:])
    return (verdict for half in halves for verdict in _judge(half, expected, target, begin))


def _attempt(group: Sequence[Sample], expected: dict[int, Expected], target: str) -> tuple[Kind | None, Any]:
    """What happened to all of ``group``, and why; ``None`` and their verdicts if they ran."""
    model = Packed(group)
    inputs = tuple(tensor for sample in group for tensor in sample.tensors)
    try:
        with torch.no_grad():
            program = torch.export.export(model, inputs, strict=False)
    except Exception as error:
        return "not exportable", first_line(error)
    try:
        executable = tkc.compile(program, target=target)
    except (InternalError, KernelBuildError) as error:
        return "internal", described(error)
    except tkc.Error as error:
        return "refused", first_line(error)
    except Exception as error:
        return "internal", described(error)
    try:
        results = executable(*(tensor.clone() for tensor in inputs))
    except Exception as error:
        return "internal", f"at the call: {described(error)}"
    return None, [_compared(sample, expected[sample.index], result) for sample, result in zip(group, results, strict=True)]


def _compared(sample: Sample, expected: Expected, result: Any) -> Verdict:
    if difference := expected.difference(result):
        return Verdict(sample.index, sample.text, "wrong", difference)
    return Verdict(sample.index, sample.text, "right", "random: shapes only" if expected.random else "")


def fallen(case: Case, index: int, fate: Fate, reason: str) -> Verdict:
    """The verdict of a sample whose process died, or of all (index -1) if it died before there were any."""
    if index < 0:
        return Verdict(index, "", fate, reason)
    (text,) = [sample.text for sample in samples(case.operator, case.dtype, case.device) if sample.index == index]
    return Verdict(index, text, fate, reason)


def described(error: BaseException) -> str:
    """An unexpected error in a line: its type, its message, and where it comes from."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<"):
            place = "/".join(file.split("/")[-2:]) + f":{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {first_line(error)} ({place})"


def first_line(error: BaseException) -> str:
    """The first line of a message that says something: a heading takes the first line below it along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text if len(text) <= 300 else text[:297] + "..."
