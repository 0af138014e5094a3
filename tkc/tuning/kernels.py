"""Measures every configuration of the kernels on this machine's device and keeps the fastest in the tuning database."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from tkc.builder import KernelBuilder
from tkc.errors import KernelBuildError, TuningStoppedError, UsageError
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.all_cases import tuning_cases
from tkc.kernels.cases import Case
from tkc.kernels.library_calls import LibraryCall
from tkc.kernels.records import KernelRecord, write_records
from tkc.kernels.spec import as_json
from tkc.measure.chosen_cases import chosen_cases
from tkc.measure.prepared_case import Prepared
from tkc.measure.record import package_version
from tkc.measure.timing import kernel_timings, median_milliseconds

_LOG = logging.getLogger(__name__)
_SECONDS = 0.02  # of measuring each configuration for the first time
_FINAL_SECONDS = 0.25  # of each that may be the fastest: time enough for a GPU to come to its power limit and slow down
_CLOSE = 1.25  # times the fastest so far: may be the fastest when measured for longer
_BETTER = 0.99  # of the best time so far: by less, measurements differ, and what comes first stays
_HOPELESS = 2.0  # times the best so far, in a single run: not worth measuring
VERSIONED = ("tkc", "tilelang")
"""The packages whose versions a record names."""
# FP8 outputs may differ by one step of their 3 or 2 bits of mantissa, 16-bit ones by their rounding.
_TOLERANCE = {"float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2, "bfloat16": 2**-6, "float16": 2**-8}

Progress = Callable[[Case, KernelRecord | None], None]


def tune_kernels(
    names: Sequence[str],
    target: Target,
    folder: Path,
    progress: Progress | None = None,
    dtype: str | None = None,
) -> list[KernelRecord]:
    """Tune the kernels called ``names`` (all that choose by size, if empty) for ``target``, which must be this machine.

    Of their cases, those alone whose operands are of ``dtype`` (``None``: any).

    Each case's winner is written to ``folder``, the target's own in a database, as soon as its kernel is through.
    ``progress`` is called with it (``None`` where no configuration was right). A configuration that does not build or
    computes something else is left out, with a warning.
    """
    cases = chosen_cases(tuning_cases(), names, dtype)
    if not cases:
        raise UsageError(f"nothing to tune in {', '.join(names)}: only kernels that choose by size have a table")
    device = torch.device("cuda" if target.is_cuda else "cpu")
    by_kernel: dict[tuple[str, Any], list[Case]] = {}
    for case in cases:
        by_kernel.setdefault((case.kernel, case.parameters), []).append(case)
    functions = built_functions(
        KernelRequest(kernel, parameters, configuration, target)
        for kernel, parameters in by_kernel
        for configuration in SPECS[kernel].configurations(parameters, target)
    )
    winners = []
    for own in by_kernel.values():
        found = [record for case in own if (record := _winner(case, functions, target, device, progress)) is not None]
        try:
            write_records(folder, found)
        except OSError as error:
            raise TuningStoppedError(
                f"the records cannot be written to {folder}: {error.strerror}; make room, or name another folder "
                "(--database, or the environment variable TKC_DATABASE_DIR)"
            ) from error
        winners += found
    return winners


def built_functions(
    requests: Iterable[KernelRequest], builder: KernelBuilder | None = None
) -> dict[KernelRequest, Any]:
    """The function of each request that builds, by ``builder``, or one of its own; :class:`KernelBuildError` where none
    does.
    """
    functions = {}
    failure = None
    with KernelBuilder() if builder is None else nullcontext(builder) as used:
        for outcome, request in _outcomes(used, list(requests)):
            if isinstance(outcome, KernelBuildError):
                _LOG.warning("%s is left out: %s", request.configuration, outcome)
                failure = outcome
            else:
                functions[request] = tvm_ffi.load_module(str(outcome))[request.symbol]
    if failure is not None and not functions:
        raise failure
    return functions


def _outcomes(
    builder: KernelBuilder, requests: Sequence[KernelRequest]
) -> Iterator[tuple[Path | KernelBuildError, KernelRequest]]:
    try:
        yield from ((library.path, request) for request, library in builder.build(requests).items())
    except KernelBuildError:
        # One of them does not build: what is built is cached, so that building each alone finds out which.
        for request in requests:
            try:
                yield builder.build([request])[request].path, request
            except KernelBuildError as error:
                yield error, request


def _winner(
    case: Case,
    functions: Mapping[KernelRequest, Any],
    target: Target,
    device: torch.device,
    progress: Progress | None,
) -> KernelRecord | None:
    best: tuple[float, Any] | None = None
    for configuration, milliseconds in _final_times(case, functions, target, device).items():
        if best is None or milliseconds < _BETTER * best[0]:
            best = milliseconds, configuration
    record = None if best is None else kernel_record(case, target, *best)
    if progress is not None:
        progress(case, record)
    return record


def _final_times(
    case: Case, functions: Mapping[KernelRequest, Any], target: Target, device: torch.device
) -> dict[Any, float]:
    """Milliseconds, by turns, of the configurations that came close when each was measured alone, in their order."""
    prepared = Prepared(case, device)
    fastest = math.inf
    close: dict[Any, tuple[float, list[Callable[[], object]]]] = {}
    for configuration in prepared.spec.configurations(case.parameters, target):
        function = functions.get(KernelRequest(case.kernel, case.parameters, configuration, target))
        if function is None:
            continue
        if (calls := right_calls(prepared, function, configuration)) is None:
            continue
        if close and median_milliseconds(calls[0], device, _SECONDS / 20) > _HOPELESS * fastest:
            continue
        milliseconds = kernel_timings({"": calls}, device, _SECONDS)[""].milliseconds
        fastest = min(fastest, milliseconds)
        close[configuration] = milliseconds, calls
        close = {c: measured for c, measured in close.items() if measured[0] <= _CLOSE * fastest}
    if not close:
        return {}
    contenders = {str(configuration): calls for configuration, (_, calls) in close.items()}
    timings = kernel_timings(contenders, device, _FINAL_SECONDS)
    return {configuration: timings[str(configuration)].milliseconds for configuration in close}


def right_calls(
    prepared: Prepared, function: Callable[..., object], configuration: Any
) -> list[Callable[[], object]] | None:
    """Calls of a built kernel as :class:`Prepared` makes them; ``None``, with a warning, where it computes something
    else, and where it is a call of a library that fails."""
    try:
        calls, error = prepared.calls(function, configuration)
    except RuntimeError as failure:
        if not isinstance(configuration, LibraryCall):
            raise
        _LOG.warning("%s is left out: %s", configuration, failure)
        return None
    return None if is_wrong(prepared.case, configuration, error) else calls


def is_wrong(case: Case, configuration: Any, error: float) -> bool:
    """Whether a ``configuration`` that deviates so far from the reference computes something else, with a warning."""
    if error <= max(_TOLERANCE.get(t.dtype, 1e-5) for t in SPECS[case.kernel].outputs(case.parameters)):
        return False
    _LOG.warning("%s is wrong by %.1e at %s: %s", case.kernel, error, dict(case.sizes), configuration)
    return True


def kernel_record(
    case: Case, target: Target, milliseconds: float, configuration: Any, *, single: bool = False
) -> KernelRecord:
    """What was measured now, by this version, on this machine's device. ``single`` is as in the record."""
    from tkc.schedules.database import this_device

    return KernelRecord(
        kernel=case.kernel,
        parameters=as_json(case.parameters),
        configuration=as_json(configuration),
        target=str(target),
        sizes=dict(case.sizes),
        milliseconds=milliseconds,
        device=this_device(target),
        versions={name: package_version(name) for name in VERSIONED},
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        single=single,
    )
