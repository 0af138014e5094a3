"""What becomes of each sample of an operator: exported, compiled, run, compared, in as few compilations as it takes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import tkc
from tkc.errors import InternalError, KernelBuildError
from tkc.runtime.report_rows import OperatorUse

from . import ties
from .comparison import Expected
from .pool import Fate, Job, Watcher
from .samples import Packed, Producer, Sample, behind, groups, named, operators, samples

Kind = Literal["right", "refused", "not exportable", "wrong", "internal", "crash", "hang"]
KINDS: tuple[Kind, ...] = ("right", "refused", "not exportable", "wrong", "internal", "crash", "hang")
FAULTS: tuple[Kind, ...] = ("wrong", "internal", "crash", "hang")
"""The verdicts of which there are to be none."""

UNINITIALIZED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose results hold whatever the memory held: they have shapes and dtypes to compare, and no values."""

PACKED = 24
"""Samples that are compiled as one module: more share the cost of one, and more fall with one that fails."""


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
    most: int | None = None
    """At most so many samples, evenly spread over all."""
    fallback: bool = False
    """Operators without a converter are called in PyTorch, not refused."""
    behind: Producer | None = None
    """What computes the first input, so that the operator is fused behind it."""

    @property
    def device(self) -> str:
        """Where samples are made."""
        return "cuda" if self.target.startswith("cuda") else "cpu"


def judge(job: Job[Case], watcher: Watcher) -> Iterator[tuple[int, Verdict]]:
    """The verdict of each sample of ``job``, by the sample's index."""
    for verdict in _judged(job.key, watcher, job.items, job.size or PACKED):
        yield verdict.index, verdict


def _judged(case: Case, watcher: Watcher, only: Sequence[int] | None, size: int) -> Iterator[Verdict]:
    warnings.simplefilter("ignore")
    wanted = [
        sample
        for sample in samples(case.operator, case.dtype, case.device, case.most)
        if only is None or sample.index in only
    ]
    if case.behind is not None:
        wanted = [each for sample in wanted if (each := behind(sample, case.behind)) is not None]
    watcher.all([sample.index for sample in wanted])
    by_index = {sample.index: sample for sample in wanted}
    expected: dict[int, Expected] = {}
    for sample in wanted:
        watcher.begin([sample.index])
        try:
            nondeterministic = getattr(operators()[case.operator], "has_nondeterministic_output", False)
            nondeterministic |= case.operator in UNINITIALIZED
            has_ties = case.operator in ties.OPERATORS and "stable=True" not in sample.text
            expected[sample.index] = Expected(sample, case.dtype, nondeterministic, has_ties)
        except Exception as error:
            yield Verdict(sample.index, sample.text, "not exportable", f"PyTorch itself: {first_line(error)}")
    for group in groups(sorted(expected), size):
        yield from _judge([by_index[index] for index in group], expected, case, watcher)


class _Failed(Exception):
    """All of a group came to nothing: ``verdict`` is what that says of one sample alone."""

    def __init__(self, kind: Kind, reason: str, named: frozenset[int] = frozenset()) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.named = kind, reason, named


def _judge(group: Sequence[Sample], expected: dict[int, Expected], case: Case, watcher: Watcher) -> Iterator[Verdict]:
    """The verdicts of samples that are compiled together, or in parts where that fails."""
    watcher.begin([sample.index for sample in group])
    try:
        yield from _attempt(group, expected, case)
        return
    except _Failed as failure:
        kind, reason = failure.kind, failure.reason
        guilty = [sample for sample in group if sample.index in failure.named]
    if len(group) == 1:
        guilty = list(group)
    if guilty:  # a refusal names the operators that it is about, and so the samples
        yield from (Verdict(sample.index, sample.text, kind, reason) for sample in guilty)
        if rest := [sample for sample in group if sample not in guilty]:
            yield from _judge(rest, expected, case, watcher)
    elif kind == "not exportable":  # exporting is cheap, and mostly all of them fail
        able = []
        for sample in group:
            watcher.begin([sample.index])
            try:
                _exported([sample])
                able.append(sample)
            except _Failed as failure:
                yield Verdict(sample.index, sample.text, failure.kind, failure.reason)
        # Those that fail only together are parted like the others.
        middle = len(able) // 2 if len(able) == len(group) else 0
        for part in (able[:middle], able[middle:]):
            if part:
                yield from _judge(part, expected, case, watcher)
    else:
        middle = len(group) // 2
        yield from _judge(group[:middle], expected, case, watcher)
        yield from _judge(group[middle:], expected, case, watcher)


def _exported(group: Sequence[Sample]) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad():
            inputs = tuple(tensor for sample in group for tensor in sample.tensors)
            return torch.export.export(Packed(group), inputs, strict=False)
    except Exception as error:
        raise _Failed("not exportable", first_line(error)) from error


def _attempt(group: Sequence[Sample], expected: dict[int, Expected], case: Case) -> list[Verdict]:
    """The verdicts of ``group``, compiled as one; :class:`_Failed` where there is nothing to compare."""
    program = _exported(group)
    try:
        executable = tkc.compile(program, target=case.target, fallback=case.fallback)
    except (InternalError, KernelBuildError) as error:
        raise _Failed("internal", described(error)) from error
    except tkc.Error as error:
        raise _Failed("refused", first_line(error), frozenset(named(str(error)))) from error
    except Exception as error:
        raise _Failed("internal", described(error)) from error
    try:
        results = executable(*(tensor.clone() for sample in group for tensor in sample.tensors))
    except Exception as error:
        raise _Failed("internal", f"at the call: {described(error)}") from error
    if any(map(_is_random, executable.report.operators)):
        for sample in group:
            expected[sample.index].random = True  # the database seeds PyTorch's own call, and no other
    return [_compared(sample, expected[sample.index], result) for sample, result in zip(group, results, strict=True)]


def _is_random(use: OperatorUse) -> bool:
    """Whether the operator, which the model calls in PyTorch, draws from its generator."""
    namespace, _, name = use.operator.partition("::")
    base, _, overload = name.partition(".")
    called = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    return torch.Tag.nondeterministic_seeded in called.tags


def _compared(sample: Sample, expected: Expected, result: Any) -> Verdict:
    if difference := expected.difference(result):
        return Verdict(sample.index, sample.text, "wrong", difference)
    return Verdict(sample.index, sample.text, "right", "shapes and dtypes only" if expected.random else "")


def fallen(case: Case, index: int, fate: Fate, reason: str) -> Verdict:
    """The verdict of a sample whose process died, or of all (index -1) if it died before there were any."""
    if index < 0:
        return Verdict(index, "", fate, reason)
    (text,) = [
        sample.text for sample in samples(case.operator, case.dtype, case.device, case.most) if sample.index == index
    ]
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
    text = re.sub(r" ?\(?(module 'calls\.sample_\d+')?,? ?File \"[^\"]*\", line \d+, in \w+\)?", "", text)
    text = re.sub(r"[:;](;| )*$", "", text)
    return text if len(text) <= 300 else text[:297] + "..."
