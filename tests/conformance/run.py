"""Cases through the pool, as results."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import torch

import tkc
from tkc.builder import KernelBuilder

from . import before_forks
from .pool import Limits, Pool
from .results import Result, code_version
from .samples import Packed, operators, samples
from .verdicts import Case, fallen, judge


def load(device: str) -> None:
    """Load, before anything is forked, what cases on ``cpu`` or ``cuda`` need: PyTorch's database and exporter, TKC."""
    torch.set_num_threads(1)
    # TileLang is loaded ahead of time for models that have kernels. Few samples have, and those load it themselves.
    KernelBuilder.load = lambda self: None  # type: ignore[method-assign]  # in this process alone
    is_cuda = device == "cuda"
    database = before_forks.capability_of_the_driver if is_cuda else before_forks.without_gpu_libraries
    with before_forks.no_context(), database():
        operators()
    with before_forks.no_context(), before_forks.without_cuda():
        for name in ("nn.functional.softsign", "nn.functional.huber_loss"):  # the second is decomposed
            sample = samples(name, "float32", "cpu")[0]
            tkc.compile(torch.export.export(Packed([sample]), sample.tensors, strict=False), target="cpu")
    gc.collect()
    gc.freeze()  # what is not looked at by collections stays one memory of all processes


def run(cases: Sequence[Case], jobs: int = 1, limits: Limits | None = None) -> Iterator[Result]:
    """The result of each case as it is done."""
    pool = Pool(judge, fallen, jobs, limits)
    for case, verdicts, seconds in pool.run(cases):
        yield Result(case, code_version(), seconds, tuple(verdicts))
