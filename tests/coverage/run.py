"""Cases through the process pool, as results."""

from __future__ import annotations

import datetime
import gc
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

import tkc
from tests.conformance.pool import Limits, Pool
from tests.conformance.results import code_version
from tkc.builder import KernelBuilder

from .results import Result
from .sources import sources
from .verdicts import DEFAULT, Case, Setting, fallen, judge

LIMITS = Limits(seconds=240.0, patience=4.0, memory=8 << 30)
"""For each variant of a model."""

DAYS = 56


def cases(among: Collection[str] | None = None) -> list[Case]:
    """Every model of the sources ``among`` these, or of all."""
    chosen = sources() if among is None else {name: sources()[name] for name in among}
    return [Case(name, model) for name, source in chosen.items() for model in source.names()]


def cases_listed_apart(among: Collection[str] | None = None) -> list[Case]:
    """:func:`cases`, listed by another process.

    Some libraries ask CUDA what there is when they are loaded, and no process can use CUDA that forked after it.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        return other.submit(cases, among).result()


def slice_of(day: datetime.date, among: Sequence[Case]) -> list[Case]:
    """The cases of a day, in an order of that day; every case has its day within ``DAYS`` days."""
    share = [
        case for case in among if zlib.crc32(f"{case.source} {case.name}".encode()) % DAYS == day.toordinal() % DAYS
    ]
    return sorted(share, key=lambda case: zlib.crc32(f"{case.name} {day}".encode()))


def load(setting: Setting = DEFAULT) -> None:
    """Load what cases need before anything is forked: not CUDA, which no process can use that forked after it."""
    torch.set_num_threads(1)
    import transformers.exporters.exporter_dynamo

    transformers.logging.set_verbosity_error()
    # TileLang is loaded ahead of time for models that have kernels; in this process it would not survive a fork.
    KernelBuilder.load = lambda self: None  # type: ignore[method-assign]  # in this process alone
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softsign())
    if setting.target == "cpu":
        tkc.compile(torch.export.export(model, (torch.randn(2, 4),), strict=False), target="cpu")
    gc.collect()
    gc.freeze()  # what is not looked at by collections stays one memory of all processes


def run(chosen: Sequence[Case], jobs: int = 1, limits: Limits = LIMITS, setting: Setting = DEFAULT) -> Iterator[Result]:
    """The result of each case as it is done."""
    for case, verdicts, seconds in Pool(partial(judge, setting=setting), fallen, jobs, limits).run(chosen):
        yield Result(case, code_version(), seconds, tuple(verdicts))
