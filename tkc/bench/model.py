"""A compiled model against PyTorch eager and against itself without kernels, in one run."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from tkc.bench.models import MODELS, Benchmarked
from tkc.bench.record import Row
from tkc.bench.timing import median_milliseconds
from tkc.compiler import compile
from tkc.errors import UsageError
from tkc.executable import Executable


def bench_model(
    name: str,
    tokens: Sequence[int],
    layers: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Sequence[str],
    database: Path | None = None,
) -> list[Row]:
    """One row for each number of tokens; ``kernels`` are the substitution settings to compile with, the first is ours.

    Errors are those of each contender against a float32 run of PyTorch, by the norm of the difference over the norm.
    """
    if name not in MODELS:
        raise UsageError(f"there is no benchmark model {name!r}; choose one of {', '.join(MODELS)}")
    first = MODELS[name](layers, device, dtype)
    built: dict[str, Executable] = {}
    seconds: dict[str, float] = {}
    for choice in kernels:
        start = time.perf_counter()
        built[choice] = compile(
            first.model,
            (),
            first.kwargs,
            target="cuda" if device.type == "cuda" else "cpu",
            dynamic_shapes=first.dynamic_shapes,
            kernels=choice,
            database=database,
        )
        seconds[choice] = time.perf_counter() - start
    exact = copy.deepcopy(first.model).float()
    return [_row(first, exact, built, seconds, count, batch, device) for count in tokens]


def _row(
    case: Benchmarked,
    exact: torch.nn.Module,
    built: dict[str, Executable],
    seconds: dict[str, float],
    tokens: int,
    batch: int,
    device: torch.device,
) -> Row:
    inputs = case.inputs(batch, tokens)
    widened = {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with torch.no_grad():
        reference = exact(**widened)[0]
        eager = case.model(**inputs)[0]
        milliseconds: dict[str, float] = {}
        errors = {"eager": _error(eager, reference)}
        for choice, executable in built.items():
            result = executable(**inputs)[0]
            errors[choice] = _error(result, reference)
            milliseconds[f"tkc {choice}"] = median_milliseconds(partial(executable, **inputs), device)
        milliseconds["eager"] = median_milliseconds(partial(case.model, **inputs), device)
    ours = next(iter(built))
    notes: dict[str, float | str] = {f"{name} error": error for name, error in errors.items()}
    notes |= {f"{choice} compile s": spent for choice, spent in seconds.items()}
    name = f"{case.name}, {batch} × {tokens} tokens"
    return Row(name, milliseconds, milliseconds["eager"] / milliseconds[f"tkc {ours}"], errors[ours], notes)


def _error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(result.float() - reference) / torch.linalg.vector_norm(reference))
