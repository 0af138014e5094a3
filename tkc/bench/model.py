"""A compiled model against PyTorch and against itself without kernels, in one run."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tkc.api import compile
from tkc.bench.contenders import known_references
from tkc.bench.decoding import DECODE_STEPS
from tkc.bench.models import MODELS, Benchmarked
from tkc.compiler.options import Kernels
from tkc.errors import UsageError
from tkc.measure.clocks import watched
from tkc.measure.record import Row, shortened
from tkc.measure.timing import median_milliseconds
from tkc.runtime.executable import Executable

Contender = Callable[..., Any]
"""Called as the model is; the first of what it returns is compared."""

TURNS = 5
"""How often contenders that differ by little are measured, by turns."""

THROUGH = "tkc, torch.compile"
"""The name of a model that TKC compiles as ``torch.compile(backend="tkc")`` has it do."""

PYTORCH = {"eager": None, "compile": "default", "max-autotune": "max-autotune"}
"""PyTorch's ways to run a model, by the mode of ``torch.compile``; kernels have the same names for them."""


def bench_model(
    name: str,
    tokens: Sequence[int],
    layers: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Sequence[Kernels],
    references: Sequence[str] = ("eager",),
    database: Path | None = None,
    batch_invariant: bool = False,
    through: bool = False,
) -> Iterator[Row]:
    """One row for each number of tokens; ``kernels`` are the substitution settings to compile with, the first is ours.

    ``references`` are keys of :data:`PYTORCH`; the ratio is to the fastest of them. Errors are those of each contender
    against a float32 run of PyTorch, by the norm of the difference over the norm. A decode step, whose caches have one
    size, is compiled for each number of tokens; its error is the larger of that of its result and those of the caches,
    relative to the row that the step writes. ``batch_invariant``: also compile each setting so, and measure all
    contenders by turns. ``through``: also what ``torch.compile(backend="tkc")`` makes of the model, by turns, too.
    """
    if name not in (*MODELS, *DECODE_STEPS):
        known = ", ".join((*MODELS, *DECODE_STEPS))
        raise UsageError(f"there is no benchmark model {name!r}; choose one of {known}")
    known_references(references)
    if name in MODELS:
        case = MODELS[name](layers, device, dtype)
        yield from _rows(case, tokens, batch, device, kernels, references, database, batch_invariant, through)
        return
    for count in tokens:
        step = DECODE_STEPS[name](layers, device, dtype, batch, count)
        yield from _rows(step, [count], batch, device, kernels, references, database, batch_invariant, through)


def _rows(
    case: Benchmarked,
    tokens: Sequence[int],
    batch: int,
    device: torch.device,
    kernels: Sequence[Kernels],
    references: Sequence[str],
    database: Path | None,
    batch_invariant: bool,
    through: bool,
) -> Iterator[Row]:
    exact = copy.deepcopy(case.model).float()
    contenders, notes = compiled(case, device, kernels, database)
    if batch_invariant:
        invariant, their_notes = compiled(case, device, kernels, database, batch_invariant=True)
        contenders, notes = contenders | invariant, notes | their_notes
    turns = TURNS if batch_invariant or through else 1
    for count in tokens:
        name = f"{case.name}, {batch} × {count} tokens"
        others = pytorch(case.model, references)
        if through:
            others = through_torch_compile(case, kernels[0], database) | others
        yield compared(name, case, exact, contenders | others, case.inputs(batch, count), notes, device, turns)


def compiled(
    case: Benchmarked,
    device: torch.device,
    kernels: Sequence[Kernels],
    database: Path | None,
    batch_invariant: bool = False,
) -> tuple[dict[str, Contender], dict[str, float | str]]:
    """The model under each of the substitution settings ``kernels``, and notes of how long that took."""
    contenders: dict[str, Contender] = {}
    notes: dict[str, float | str] = {}
    for choice in kernels:
        start = time.perf_counter()
        name = f"tkc {choice}" + (", batch-invariant" if batch_invariant else "")
        contenders[name] = compile(
            case.model,
            (),
            case.kwargs,
            target="cuda" if device.type == "cuda" else "cpu",
            dynamic_shapes=case.dynamic_shapes,
            kernels=choice,
            database=database,
            batch_invariant=batch_invariant,
        )
        notes[f"{name} compile s"] = time.perf_counter() - start
    return contenders, notes


def pytorch(model: torch.nn.Module, names: Sequence[str]) -> dict[str, Contender]:
    """PyTorch's contenders by ``names``, keys of :data:`PYTORCH`, not yet compiled."""
    torch.compiler.reset()  # what was compiled for another size would make the next one dynamic
    modes = {name: PYTORCH[name] for name in names}
    return {
        name: model if mode is None else torch.compile(model, mode=mode, dynamic=False) for name, mode in modes.items()
    }


def through_torch_compile(case: Benchmarked, kernels: Kernels, database: Path | None) -> dict[str, Contender]:
    """The model as ``torch.compile(backend="tkc")`` has TKC compile it, for all sizes where ours is; by its name."""
    from tkc.dynamo.backend import tkc

    options: dict[str, Any] = {"kernels": kernels, "database": database}
    dynamic = case.dynamic_shapes is not None
    return {THROUGH: torch.compile(case.model, backend=tkc, dynamic=dynamic, options=options)}


def compared(
    name: str,
    case: Benchmarked,
    exact: torch.nn.Module,
    contenders: Mapping[str, Contender],
    inputs: dict[str, Any],
    notes: Mapping[str, float | str],
    device: torch.device,
    turns: int = 1,
) -> Row:
    """The row ``name``: what each contender takes for ``inputs``, and its error against ``exact``, the float32 model.

    The first contender is ours; the ratio is to the fastest of those that are keys of :data:`PYTORCH`. Of several
    ``turns``, in which each is measured once, the median counts. Of :data:`THROUGH` it is noted what share of our time
    it takes, and the norm of the difference of its result to ours over the norm.
    """
    notes = dict(notes)
    widened = {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    measured: dict[str, list[float]] = {}
    errors: dict[str, float] = {}
    with torch.no_grad():
        reference = exact(**widened)[0]
        for contender_name, contender in contenders.items():
            start = time.perf_counter()
            try:
                errors[contender_name] = _checked(contender, case, inputs, reference, exact)
            except Exception as error:  # whatever PyTorch's compiler stumbles over: ours is still to be compared
                if contender_name != THROUGH and PYTORCH.get(contender_name) is None:
                    raise
                notes[f"{contender_name} failed"] = shortened(error)
                continue
            if contender_name == THROUGH or contender_name in PYTORCH:
                notes.setdefault(f"{contender_name} first call s", time.perf_counter() - start)
            with watched(device) as state:
                measured[contender_name] = [median_milliseconds(partial(contender, **inputs), device)]
            notes |= {f"{contender_name} {unit}": value for unit, value in state.items()}
        for _ in range(turns - 1):
            for contender_name, times in measured.items():
                times.append(median_milliseconds(partial(contenders[contender_name], **inputs), device))
        milliseconds = {contender_name: statistics.median(times) for contender_name, times in measured.items()}
        ours = next(iter(contenders))
        if THROUGH in measured:
            notes[f"{THROUGH} / {ours}"] = milliseconds[THROUGH] / milliseconds[ours]
            notes[f"{THROUGH} differs by"] = _error(contenders[THROUGH](**inputs)[0], contenders[ours](**inputs)[0])
    others = [time for contender, time in milliseconds.items() if contender in PYTORCH]
    notes |= {f"{contender} error": error for contender, error in errors.items()}
    return Row(name, milliseconds, min(others) / milliseconds[ours] if others else None, errors[ours], notes)


def _checked(
    contender: Contender, case: Benchmarked, inputs: dict[str, Any], reference: torch.Tensor, exact: torch.nn.Module
) -> float:
    """The error of a call's result, or of the row that it writes into a cache if that is larger."""
    caches = contender.state if isinstance(contender, Executable) else _buffers(contender)
    row = {name: (..., int(inputs["position"]), slice(None)) for name in case.caches}
    for name in case.caches:
        caches[name][row[name]] = torch.nan
    errors = [_error(contender(**inputs)[0], reference)]
    for name in case.caches:
        expected = exact.get_buffer(name)
        deviation = torch.linalg.vector_norm(caches[name].float() - expected)
        errors.append(float(deviation / torch.linalg.vector_norm(expected[row[name]])))
    return float(torch.tensor(errors).max())  # not a number, where one is not


def _buffers(model: Any) -> dict[str, torch.Tensor]:
    """The buffers of a PyTorch model, compiled or not."""
    original = getattr(model, "_orig_mod", model)
    return dict(original.named_buffers())


def _error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(result.float() - reference.float()) / torch.linalg.vector_norm(reference))
