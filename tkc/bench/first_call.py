"""The first call of a compiled model, in the process that this program is: what ``tkc bench warm-start`` starts."""

from __future__ import annotations

import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from tkc.bench.import_time import timed_imports
from tkc.bench.models import MODELS
from tkc.bench.small_models import SMALL_MODELS


@dataclass(frozen=True)
class Call:
    """What is called: ``layers`` of a ``model`` (a key of :data:`MODELS`) with ``batch`` sequences of ``tokens``,
    compiled by ``contender``, a key of :data:`CONTENDERS`; ``dynamic`` as ``torch.compile`` takes it."""

    model: str
    small: bool
    layers: int
    batch: int
    tokens: int
    device: str
    dtype: str
    contender: str
    dynamic: bool | None = None


@dataclass(frozen=True)
class FirstCall:
    """``seconds`` from ``torch.compile`` to the first result, of which ``imports`` went into loading modules.

    ``error`` is the norm of the difference to the model in float32 over the norm; ``graphs`` were captured; ``warned``
    is what TKC warned of, as of a graph that it left to PyTorch.
    """

    seconds: float
    imports: float
    error: float
    graphs: int
    warned: list[str]


def _by_tkc(model: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
    # What the name "tkc" stands for, which is no name where TKC is not installed but only on the path.
    from tkc.dynamo.backend import tkc

    return torch.compile(model, backend=tkc, dynamic=dynamic)


CONTENDERS: dict[str, Callable[[nn.Module, bool | None], Callable[..., Any]]] = {
    "tkc": _by_tkc,
    "compile": lambda model, dynamic: torch.compile(model, dynamic=dynamic),
    "max-autotune": lambda model, dynamic: torch.compile(model, mode="max-autotune", dynamic=dynamic),
}
"""How a model is compiled: by TKC, and by Inductor in two of its modes."""


def first_call(call: Call) -> FirstCall:
    """Make the model, then compile and call it, and only then compute what should come out."""
    device = torch.device(call.device)
    case = (SMALL_MODELS if call.small else MODELS)[call.model](call.layers, device, getattr(torch, call.dtype))
    inputs = case.inputs(call.batch, call.tokens)
    with torch.no_grad():
        _synchronize(device)
        with timed_imports() as imports, _warnings() as warned:
            start = time.perf_counter()
            result = CONTENDERS[call.contender](case.model, call.dynamic)(**inputs)[0]
            _synchronize(device)
            seconds = time.perf_counter() - start
        exact = copy.deepcopy(case.model).float()
        widened = {
            name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in inputs.items()
        }
        expected = exact(**widened)[0]
        error = torch.linalg.vector_norm(result.float() - expected) / torch.linalg.vector_norm(expected)
    graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return FirstCall(seconds, imports.seconds, float(error), graphs, warned)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What TKC's backend warns of in the block."""
    told: list[str] = []

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger, handler = logging.getLogger("tkc"), Told(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


if __name__ == "__main__":
    print(json.dumps(asdict(first_call(Call(**json.loads(sys.argv[1]))))))
