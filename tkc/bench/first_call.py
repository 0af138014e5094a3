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

from tkc.bench.import_time import Imports, timed_imports
from tkc.bench.language_models import LANGUAGE_MODELS, language_model
from tkc.bench.models import MODELS
from tkc.bench.small_models import SMALL_MODELS


@dataclass(frozen=True)
class Call:
    """What is called: ``layers`` of a ``model`` (a key of :data:`MODELS`) with ``batch`` sequences of ``tokens``,
    compiled by ``contender``, a key of :data:`CONTENDERS`; ``dynamic`` as ``torch.compile`` takes it.

    A key of :data:`LANGUAGE_MODELS` is called by transformers' ``generate``, as the contender of the benchmark of
    generation that has this name does it.
    """

    model: str
    small: bool
    layers: int | None
    batch: int
    tokens: int
    device: str
    dtype: str
    contender: str
    dynamic: bool | None = None


@dataclass(frozen=True)
class FirstCall:
    """``seconds`` from ``torch.compile`` to the first result, of which ``imports`` went into loading modules.

    ``error`` is the norm of the difference to the model in float32 over the norm, of a generation the share of new
    tokens that are not those of eager. ``graphs`` were captured; ``warned`` is what TKC warned of, as of a graph that
    it left to PyTorch.
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
    device, dtype = torch.device(call.device), getattr(torch, call.dtype)
    if call.model in LANGUAGE_MODELS:
        return _first_generation(call, device, dtype)
    assert call.layers is not None
    case = (SMALL_MODELS if call.small else MODELS)[call.model](call.layers, device, dtype)
    inputs = case.inputs(call.batch, call.tokens)
    with torch.no_grad():
        with _timed(device) as timed:
            result = CONTENDERS[call.contender](case.model, call.dynamic)(**inputs)[0]
        exact = copy.deepcopy(case.model).float()
        widened = {
            name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in inputs.items()
        }
        expected = exact(**widened)[0]
        error = torch.linalg.vector_norm(result.float() - expected) / torch.linalg.vector_norm(expected)
    return timed.first_call(float(error))


_NEW = 4  # tokens, by the prefill and by several decoding steps


def _first_generation(call: Call, device: torch.device, dtype: torch.dtype) -> FirstCall:
    from tkc.bench.generation import CONTENDERS as GENERATING
    from tkc.bench.generation import Asked

    model = language_model(call.model, call.layers, call.tokens + _NEW, call.small, device, dtype)
    asked = Asked(model, call.batch, call.tokens, _NEW, None)
    ids = torch.randint(0, model.config.vocab_size, (call.batch, call.tokens), device=device)
    with _timed(device) as timed:
        tokens = GENERATING[call.contender](asked)(ids)
    expected = GENERATING["eager"](asked)(ids)
    return timed.first_call(float((tokens != expected)[:, call.tokens :].float().mean()))


@dataclass
class _Timed:
    """What was seen of a first call while it ran."""

    imports: Imports
    warned: list[str]
    seconds: float = 0.0
    graphs: int = 0

    def first_call(self, error: float) -> FirstCall:
        """All of it, with its ``error``."""
        return FirstCall(self.seconds, self.imports.seconds, error, self.graphs, self.warned)


@contextmanager
def _timed(device: torch.device) -> Iterator[_Timed]:
    _synchronize(device)
    with timed_imports() as imports, _warnings() as warned:
        timed = _Timed(imports, warned)
        start = time.perf_counter()
        yield timed
        _synchronize(device)
        timed.seconds = time.perf_counter() - start
    timed.graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


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
